"""A coordinator's run is attacked with the sites' samples, computed again where it can be."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.cli.calling import call
from tests.federation import fake
from unskew.data.clients.federation import Federation
from unskew.data.clients.partition import Index
from unskew.records import schema
from unskew.report.page import write_report

pytestmark = pytest.mark.usefixtures("few_attempts")


SIZES = (40, 33, 30)


QUICK = ("membership", "--set", "clients=1", "--set", "shadows=0", "--samples", "40")


def federation() -> Federation:
    rng = np.random.default_rng(7)
    n = sum(SIZES)
    y = rng.integers(0, 3, 3 * n)
    x = rng.random((3 * n, 3, 8, 8)).astype(np.float32)
    ends = np.cumsum([0, *SIZES])
    rows, test = ([np.arange(a, b) for a, b in itertools.pairwise(e)] for e in (ends, 2 * ends))
    return Federation(
        "three", x[:n], y[:n], x[n:], y[n:], ("a", "b", "c"), Index.of(rows), Index.of(test), "iid"
    )


def conducted(root: Path, method: str, lost: tuple[str, str, int] = ("", "", 0), **changes) -> Path:
    """A finished run. lost: the answer of this site, to a request of this kind, in this round."""
    everything = federation()
    for k in range(len(SIZES)):
        d = fake.data_of(everything, k)
        np.savez(
            root / f"s{k}.npz",
            x_train=d.x,
            y_train=d.y,
            x_test=d.x_test,
            y_test=d.y_test,
            classes=np.array(d.classes),
        )
    channel = fake.Direct(fake.sites(root / "sites", everything))
    channel.meddle = lambda site, asked, honest: None if channel.asked[-1] == lost else honest
    settings = {"clients": len(SIZES), "rounds": 3} | changes
    fake.run(root / "run", channel, fake.small(method, **settings))
    return root / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return conducted(tmp_path_factory.mktemp("coordinator"), "fedavg", lost=("s1", "train", 2))


@pytest.fixture
def copy(run, tmp_path):
    return Path(shutil.copytree(run, tmp_path / "run"))


def given(run: Path, **other: str) -> list[str]:
    places = {f"s{k}": str(run.parent / f"s{k}.npz") for k in range(len(SIZES))} | other
    return [word for site, place in places.items() for word in ("--data", f"{site}={place}")]


def test_a_round_without_a_site_is_computed_again_and_its_model_attacked(run, copy):
    used = [e["answered"] for e in map(json.loads, (run / "events.jsonl").open()) if e["code"] == "round"]
    assert [0, 2] in used
    done = call("attack", str(copy), *QUICK, *given(run))
    assert done.code == 0, done.err
    finding = schema.read_privacy(copy)["attacks"]["membership"]
    assert {s["of"] for s in finding["scores"]} >= {"merged model, loss", "update of s0, loss"}
    assert str(run.parent) not in json.dumps(finding)
    assert str(copy.parent) not in json.dumps(finding)
    assert "--data s0=PATH" in finding["command"]


@pytest.mark.parametrize(
    ("method", "lost"),
    [("flea", ("s1", "visit", 1)), ("fedmix", ("s2", "visit", 0)), ("flea", ("s1", "train", 2))],
)
def test_a_site_that_answered_training_and_failed_a_later_exchange_is_absent_from_that_alone(
    tmp_path, method, lost
):
    folder = conducted(tmp_path, method, lost)
    sent = [
        r for r in map(json.loads, (folder / "ledger.jsonl").open()) if r["way"] == "up" and r["t"] == lost[2]
    ]
    absent = int(lost[0][1])
    assert {absent in r["clients"] for r in sent if r["share"] == "w"} == (
        {lost[1] == "visit"} if lost[2] else set()
    )
    assert not any(absent in r["clients"] for r in sent if r["share"].startswith(method))
    done = call("attack", str(folder), *QUICK, *given(folder))
    assert done.code == 0, done.err


def refused(run: Path, words, code: str, *texts: str) -> None:
    done = call("attack", str(run), *QUICK, *words)
    assert (done.code, done.err[:4]) == (2, code), done.err
    assert "Traceback" not in done.err
    assert all(text in done.err for text in texts), done.err
    assert "attacks" not in schema.read_privacy(run)


def test_data_of_another_size_name_both(run, copy):
    refused(copy, given(run, s0=str(run.parent / "s1.npz")), "E155", "s1.npz", "site s0", "33", "40")


def test_other_samples_of_the_same_size_have_other_bits(run, copy, tmp_path):
    held = dict(np.load(run.parent / "s1.npz"))
    held["x_train"] = held["x_train"] + np.float32(0.01)
    np.savez(tmp_path / "other.npz", **held)
    refused(copy, given(run, s1=str(tmp_path / "other.npz")), "E112", "samples given")


def test_missing_unknown_and_odd_sites(run, copy):
    refused(copy, [*given(run), "--data", "s9=x.npz"], "E126", "s9", "s0, s1, s2")
    refused(copy, ["--data", "s0"], "E126", "SITE=PATH")
    refused(copy, [*given(run), "--data", "s0=x.npz"], "E126", "twice")


def test_pictures_without_data_and_runs_anew_are_refused(run, copy):
    refused(copy, ["--pictures"], "E126", "--pictures")
    done = call("attack", str(copy), "audit", *given(run))
    assert (done.code, done.err[:4]) == (2, "E151"), done.err


@pytest.mark.parametrize(("key", "code"), [("method", "E506"), ("model", "E156"), ("metrics", "E506")])
def test_code_that_the_folder_names_is_not_run(run, copy, tmp_path, key, code):
    evil, mark = tmp_path / "evil.py", tmp_path / "ran"
    evil.write_text(f"open({str(mark)!r}, 'w')\n")
    file = copy / "config.yaml"
    lines = [line for line in file.read_text().splitlines() if not line.startswith(f"{key}:")]
    file.write_text("\n".join([*lines, f'{key}: "{evil}:f"', ""]))
    refused(copy, given(run), code)
    assert not mark.exists()


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory):
    return conducted(tmp_path_factory.mktemp("merged"), "fedavg", epochs=40, rounds=3)


@pytest.fixture
def trained_copy(trained_run, tmp_path):
    return Path(shutil.copytree(trained_run, tmp_path / "run"))


def measured(folder: Path, *words: str) -> dict:
    done = call("attack", str(folder), *words)
    assert done.code == 0, done.err
    finding = schema.read_privacy(folder)["attacks"]["membership"]
    assert {s["of"].split(",")[0] for s in finding["scores"]} == {"merged model"}
    assert f"Note: {finding['only']}." in done.out
    return finding


def auc(finding: dict) -> float:
    return next(s["value"] for s in finding["scores"] if s["metric"] == "AUC" and s["of"].endswith("loss"))


def test_some_sites_samples_are_told_from_strangers_and_whose_they_are_is_said(trained_run, trained_copy):
    finding = measured(trained_copy, *QUICK, *given(trained_run)[:2])
    assert (
        finding["only"]
        == "only the merged model was attacked, because the samples of s1, s2 are missing; the members are"
        " samples of s0"
    )
    assert "--data s0=PATH" in finding["command"]
    assert "s1" not in finding["command"]
    assert auc(finding) > 0.7
    page = re.sub(r"\s+", " ", write_report([trained_copy], trained_copy / "page.html").read_text())
    assert f"Note: {finding['only']}." in page
    assert "merged model, loss, of samples of s0" not in page


def test_what_reads_single_clients_is_refused_by_name(trained_run, trained_copy):
    for name in ("gradient", "reconstruct", "statistics"):
        done = call("attack", str(trained_copy), name, *given(trained_run)[:2])
        assert (done.code, done.err[:4]) == (2, "E151"), done.err
        assert f"'{name}'" in done.err
        assert "the samples of s1, s2 are missing" in done.err
        assert done.err.count("\n") == 1
    done = call("attack", str(trained_copy), *given(trained_run)[:2])
    assert done.code == 0, done.err
    assert "gradient: left out, it reads what single clients send" in done.out
    assert set(schema.read_privacy(trained_copy)["attacks"]) == {"membership"}


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
