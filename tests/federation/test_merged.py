"""A coordinator's run whose rounds cannot be computed again: its merged model is attacked, and nothing else
is claimed."""

from __future__ import annotations

import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cli.calling import call
from tests.federation.test_reheard import QUICK, conducted, given
from unskew.records import checkpoints, schema
from unskew.report.page import write_report

pytestmark = pytest.mark.usefixtures("few_attempts")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return conducted(tmp_path_factory.mktemp("merged"), "fedavg", epochs=40, rounds=3)


@pytest.fixture
def copy(run, tmp_path):
    return Path(shutil.copytree(run, tmp_path / "run"))


def measured(folder: Path, *words: str) -> dict:
    done = call("attack", str(folder), *words)
    assert done.code == 0, done.err
    finding = schema.read_privacy(folder)["attacks"]["membership"]
    assert {s["of"].split(",")[0] for s in finding["scores"]} == {"merged model"}
    assert f"Note: {finding['only']}." in done.out
    return finding


def auc(finding: dict) -> float:
    return next(s["value"] for s in finding["scores"] if s["metric"] == "AUC" and s["of"].endswith("loss"))


def test_some_sites_samples_are_told_from_strangers_and_whose_they_are_is_said(run, copy):
    finding = measured(copy, *QUICK, *given(run)[:2])
    assert (
        finding["only"]
        == "only the merged model was attacked, because the samples of s1, s2 are missing; the members are"
        " samples of s0"
    )
    assert "--data s0=PATH" in finding["command"]
    assert "s1" not in finding["command"]
    assert auc(finding) > 0.7
    page = re.sub(r"\s+", " ", write_report([copy], copy / "page.html").read_text())
    assert f"Note: {finding['only']}." in page
    assert "merged model, loss, of samples of s0" not in page


def test_samples_that_no_site_had_are_no_members(run, copy, tmp_path):
    """Only their number and form can be compared, so the attack finds nothing in them."""
    held = dict(np.load(run.parent / "s0.npz"))
    held["x_train"] = np.random.default_rng(3).random(held["x_train"].shape).astype(np.float32)
    np.savez(tmp_path / "other.npz", **held)
    assert abs(auc(measured(copy, *QUICK, "--data", f"s0={tmp_path / 'other.npz'}")) - 0.5) < 0.2


def test_shadow_models_need_no_round_again(run, copy):
    words = ("membership", "--set", "shadows=4", "--set", "passes=60", "--samples", "40")
    finding = measured(copy, *words, *given(run)[:4])
    lira = [s for s in finding["scores"] if (s["of"], s["metric"]) == ("merged model, lira", "AUC")]
    assert lira
    assert lira[0]["value"] > 0.6
    assert finding["only"].endswith("the members are samples of s0, s1")


def test_what_reads_single_clients_is_refused_by_name(run, copy):
    for name in ("gradient", "reconstruct", "statistics"):
        done = call("attack", str(copy), name, *given(run)[:2])
        assert (done.code, done.err[:4]) == (2, "E151"), done.err
        assert f"'{name}'" in done.err
        assert "the samples of s1, s2 are missing" in done.err
        assert done.err.count("\n") == 1
    done = call("attack", str(copy), *given(run)[:2])
    assert done.code == 0, done.err
    assert "gradient: left out, it reads what single clients send" in done.out
    assert set(schema.read_privacy(copy)["attacks"]) == {"membership"}


def test_whoever_has_all_samples_may_attack_the_merged_model_alone(run, copy):
    file = copy / "ledger.jsonl"
    held = dict(np.load(run.parent / "s1.npz"))
    held["x_train"][0, 0, 0, 0] += 0.25
    np.savez(copy.parent / "other.npz", **held)
    words = given(run, s1=str(copy.parent / "other.npz"))
    done = call("attack", str(copy), *QUICK, *words)
    assert (done.code, done.err[:4]) == (2, "E112"), done.err
    assert "--merged" in done.err
    finding = measured(copy, *QUICK, *words, "--merged")
    assert "(--merged)" in finding["only"]
    assert "--merged" in finding["command"].split()
    assert file.exists()
    assert call("attack", str(copy), *QUICK, "--merged").err.startswith("E126")


@pytest.mark.parametrize(
    ("method", "settings", "why"),
    [
        (
            "dp(clip=1.0, noise_multiplier=1.0)",
            {"availability": "poisson:0.9"},
            "the noise of 'dp' came from",
        ),
        ("dpsgd(clip=1.0, noise_multiplier=0.5)", {}, "the noise of 'dpsgd' came from"),
        pytest.param(
            "fedavg",
            {"secure_aggregation": "on"},
            "the server read sums alone",
            marks=[
                pytest.mark.flower,
                pytest.mark.skipif(not find_spec("flwr"), reason="Flower is not installed"),
            ],
        ),
    ],
)
def test_runs_that_nobody_can_compute_again_are_attacked_by_their_model(tmp_path, method, settings, why):
    folder = conducted(tmp_path, method, **settings)
    for words in (given(folder), given(folder)[:2]):
        assert why in measured(folder, *QUICK, *words)["only"]
    done = call("attack", str(folder), "gradient", *given(folder))
    assert (done.code, done.err[:4]) == (2, "E151"), done.err
    assert why in done.err
    page = re.sub(r"\s+", " ", write_report([folder], folder / "page.html").read_text())
    assert "membership (was this sample in the training?)" in page


def planted(folder: Path, change) -> None:
    """The last checkpoint of somebody who wants to be attacked."""
    tree, facts = checkpoints.read(folder / checkpoints.LATEST)
    change(tree)
    checkpoints.write(folder / checkpoints.LATEST, tree, facts)


def spoil(name, value):
    def change(tree):
        tree["w"][name] = value(tree["w"][name])

    return change


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda tree: tree["w"].popitem(), "E156"),
        (spoil("head.bias", lambda w: w[:1]), "E156"),
        (spoil("head.bias", lambda w: w * float("nan")), "E155"),
        (lambda tree: tree["w"].update({"evil": torch.zeros(3)}), "E156"),
    ],
)
def test_weights_that_are_not_the_models_are_one_sentence(run, copy, change, code):
    planted(copy, change)
    done = call("attack", str(copy), *QUICK, *given(run)[:2])
    assert (done.code, done.err[:4]) == (2, code), done.err
    assert schema.read_privacy(copy) == {}


def test_a_servers_state_that_its_method_cannot_have_is_one_sentence(tmp_path):
    folder = conducted(tmp_path, "fedrdn")
    assert measured(folder, *QUICK, *given(folder)[:2])
    for change in (lambda tree: tree["slices"]["fedrdn"].clear(), lambda tree: tree.pop("slices", None)):
        planted(folder, change)
        done = call("attack", str(folder), *QUICK, *given(folder)[:2])
        assert (done.code, done.err[:4]) == (2, "E155"), done.err
