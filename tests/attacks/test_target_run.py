"""Which runs can be attacked, what is heard of them again, and what attacks leave in their folders."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.attacks.runs import noise, trained
from tests.cli.calling import call
from tests.data.test_data import tiny_clothes
from unskew import data
from unskew.attacks import auxiliary_samples, registry
from unskew.attacks.target_run import TargetRun
from unskew.errors import StateError, UsageError
from unskew.records import checkpoints, schema
from unskew.report.page import write_report

QUICK = ("membership", "--set", "clients=1", "--set", "shadows=0", "--samples", "40")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def copy(run, tmp_path):
    return Path(shutil.copytree(run, tmp_path / "r"))


def content(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


def test_the_last_round_is_heard_again_and_ends_with_the_runs_bits(run):
    before = content(run)
    target = TargetRun(run)
    recorded = target.last_round
    target.close()
    mean = torch.stack([r.weights["head.bias"] for r in recorded.replies]).mean(
        0
    )  # all clients have as many samples
    assert len(recorded.replies) == 3
    assert torch.allclose(mean, target.final.weights["head.bias"], atol=1e-6)
    assert content(run) == before


def test_a_round_that_ends_with_other_bits_is_not_attacked(copy):
    tree, facts = checkpoints.read(copy / checkpoints.PREVIOUS)
    tree["w"]["head.bias"] += 1e-6
    checkpoints.write(copy / checkpoints.PREVIOUS, tree, facts)
    done = call("attack", str(copy), *QUICK)
    assert (done.code, done.err[:4]) == (2, "E112")
    assert schema.read_privacy(copy) == {}


def test_a_run_that_has_not_ended_is_not_attacked(copy):
    shutil.copy(copy / checkpoints.PREVIOUS, copy / checkpoints.LATEST)
    done = call("attack", str(copy))
    assert (done.code, done.err[:4]) == (2, "E155")
    assert f"unskew resume {copy}" in done.err


def test_a_damaged_checkpoint_is_named_and_left_where_it_is(copy):
    name = checkpoints.PREVIOUS
    whole = (copy / name).read_bytes()
    (copy / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    before = content(copy)
    done = call("attack", str(copy), *QUICK)
    assert (done.code, done.err[:4]) == (2, "E201")
    assert {n: c for n, c in content(copy).items() if n != "run.lock"} == {
        n: c for n, c in before.items() if n != "run.lock"
    }


def test_of_a_run_whose_server_read_sums_alone_the_merged_model_is_attacked(tmp_path):
    folder = trained(tmp_path, secure_aggregation="on")
    page = write_report([folder], tmp_path / "page.html").read_text()
    assert f"<code>unskew attack {folder} membership</code>" in page
    done = call("attack", str(folder))
    assert done.code == 0, done.err
    (name,) = schema.read_privacy(folder)["attacks"]
    finding = schema.read_privacy(folder)["attacks"][name]
    assert (name, finding["only"]) == (
        "membership",
        "only the merged model was attacked, because the server read sums alone (secure_aggregation)",
    )
    assert all(s["of"].startswith("merged model") for s in finding["scores"])
    refused = call("attack", str(folder), "gradient")
    assert (refused.code, refused.err[:4]) == (2, "E151")
    assert "'gradient'" in refused.err
    assert "the server read sums alone" in refused.err
    assert call("audit", str(folder), "--samples", "10").code == 0


@pytest.mark.parametrize(
    ("words", "piece"),
    [
        (("membrship",), "Did you mean 'membership'?"),
        (("membership", "--set", "shadows=3"), "a multiple of 2"),
        (("membership", "--set", "shadws=2"), "Did you mean 'shadows'?"),
        (("--set", "shadows=2"), "name it"),
    ],
)
def test_a_wrong_attack_or_setting_is_refused_before_the_run_is_read(run, words, piece):
    done = call("attack", str(run), *words)
    assert (done.code, done.err[:4]) == (2, "E126")
    assert piece in done.err


def test_the_report_says_what_was_measured_by_which_command_and_what_was_not(copy):
    page = write_report([copy], copy / "page.html").read_text()
    assert (
        "not measured by gradient, membership<br><code>"
        f"unskew attack {copy} gradient or unskew attack {copy} membership</code>" in page
    )
    done = call("attack", str(copy), *QUICK, "--seeds", "2")
    assert done.code == 0, done.err
    page = (copy / "report.html").read_text()
    command = f"unskew attack {copy} membership --samples=40 --set clients=1 --set shadows=0 --seeds=2"
    assert f"<code>{command}</code>" in page
    assert "membership (was this sample in the training?): AUC 0." in page
    assert "; TPR at 1.0% FPR 0" in page
    assert f"not measured by gradient<br><code>unskew attack {copy} gradient</code>" in page
    finding = schema.read_privacy(copy)[schema.ATTACKS]["membership"]
    del finding["asks"]
    schema.put_attack(copy, "membership", finding)  # as older versions wrote it
    assert ">membership: AUC 0." in write_report([copy], copy / "page.html").read_text()
    assert "Adversary: of the merged model" in page
    assert '<td class="' not in page.split('id="leaves"')[1].split("</section>")[0]


def test_the_attackers_own_samples_are_held_by_nobody_and_equal_none_that_is_attacked(run, monkeypatch):
    target = TargetRun(run)
    target.close()
    federation, stored = target.run.federation, target.trainer.samples.x
    attacked = stored[torch.as_tensor(federation.train.rows)]
    own = auxiliary_samples.unseen(federation, attacked, 0)
    assert not auxiliary_samples.prints(own.x.numpy()) & auxiliary_samples.prints(attacked.numpy())
    assert own.name == "training samples that no client holds"
    copied = own.x[:30]
    assert len(auxiliary_samples.unseen(federation, copied, 0)) == len(own) - 30  # copies are left out
    monkeypatch.setattr(auxiliary_samples, "PIECE", 7)
    some = auxiliary_samples.unseen(federation, attacked, 0, most=60)  # the same, read piece by piece
    assert torch.equal(some.x, own.x[:60])
    assert torch.equal(some.y, own.y[:60])
    with pytest.raises(UsageError, match="E151"):
        auxiliary_samples.unseen(federation, own.x[10:], 0)


def test_images_of_a_named_set_that_no_client_holds_are_read_again(tmp_path, monkeypatch):
    tiny_clothes(tmp_path, 300)
    monkeypatch.setenv("UNSKEW_DATA", str(tmp_path))
    target, whole = (
        TargetRun(trained(tmp_path, data="fashion_mnist")),
        data.read("fashion_mnist").standardised().x,
    )
    target.close()
    held = target.federation.train
    assert np.array_equal(target.held_by(1).numpy(), whole[held[1]])
    own = auxiliary_samples.unseen(target.federation, target.held(), 0)
    assert own.name == "training samples that no client holds"
    free = np.delete(whole, held.rows, axis=0)
    assert auxiliary_samples.prints(own.x.numpy()) == auxiliary_samples.prints(free)


def test_other_data_are_not_attacked(tmp_path):
    file = noise(tmp_path)
    run = trained(tmp_path, data=file)
    arrays = dict(np.load(file))
    arrays["x"][0] += 0.5
    np.savez(file, **arrays)
    with pytest.raises(StateError, match="E112"):
        TargetRun(run)


def test_explain_says_which_attacks_measure_what_is_sent():
    assert all(registry.kind_of(name).asks.endswith("?") for name in registry.names())
    words = " ".join(call("explain", "rebafl").out.split())
    seen = "seen by the server, and what it makes of it by every client; not measured (measure it:"
    assert f"rebafl/sums: {seen} unskew attack RUN prototype)" in words
    assert (
        f"weights: {seen} unskew attack RUN gradient, unskew attack RUN membership, unskew audit RUN)"
        in words
    )
    labels = " ".join(call("explain", "flea").out.split())
    assert "flea/labels: seen by the server, and what it makes of it by every client; labels, in" in labels
    assert "not measured, and no attack here reads it" in words.split("rebafl/counts: seen")[1]
