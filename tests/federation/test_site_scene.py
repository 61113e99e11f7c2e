"""The merged model of a coordinator's run is attacked with the samples of its sites."""

from __future__ import annotations

import itertools
import re
import shutil
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


def conducted(root: Path, method: str, **changes) -> Path:
    """A finished run."""
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
    settings = {"clients": len(SIZES), "rounds": 3} | changes
    fake.run(root / "run", channel, fake.small(method, **settings))
    return root / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return conducted(tmp_path_factory.mktemp("merged"), "fedavg", epochs=40, rounds=3)


@pytest.fixture
def copy(run, tmp_path):
    return Path(shutil.copytree(run, tmp_path / "run"))


def given(run: Path, **other: str) -> list[str]:
    places = {f"s{k}": str(run.parent / f"s{k}.npz") for k in range(len(SIZES))} | other
    return [word for site, place in places.items() for word in ("--data", f"{site}={place}")]


def refused(run: Path, words, code: str, *texts: str) -> None:
    done = call("attack", str(run), *QUICK, *words)
    assert (done.code, done.err[:4]) == (2, code), done.err
    assert "Traceback" not in done.err
    assert all(text in done.err for text in texts), done.err
    assert "attacks" not in schema.read_privacy(run)


def test_data_of_another_size_name_both(run, copy):
    refused(copy, given(run, s0=str(run.parent / "s1.npz")), "E155", "s1.npz", "site s0", "33", "40")


def test_missing_unknown_and_odd_sites(run, copy):
    refused(copy, [*given(run), "--data", "s9=x.npz"], "E126", "s9", "s0, s1, s2")
    refused(copy, ["--data", "s0"], "E126", "SITE=PATH")
    refused(copy, [*given(run), "--data", "s0=x.npz"], "E126", "twice")


@pytest.mark.parametrize(("key", "code"), [("method", "E506"), ("model", "E156"), ("metrics", "E506")])
def test_code_that_the_folder_names_is_not_run(run, copy, tmp_path, key, code):
    evil, mark = tmp_path / "evil.py", tmp_path / "ran"
    evil.write_text(f"open({str(mark)!r}, 'w')\n")
    file = copy / "config.yaml"
    lines = [line for line in file.read_text().splitlines() if not line.startswith(f"{key}:")]
    file.write_text("\n".join([*lines, f'{key}: "{evil}:f"', ""]))
    refused(copy, given(run), code)
    assert not mark.exists()


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
        == "only the merged model was attacked, because a coordinator keeps no replies of sites; the members"
        " are samples of s0"
    )
    assert "--data s0=PATH" in finding["command"]
    assert "s1" not in finding["command"]
    assert auc(finding) > 0.7
    page = re.sub(r"\s+", " ", write_report([copy], copy / "page.html").read_text())
    assert f"Note: {finding['only']}." in page
    assert "merged model, loss, of samples of s0" not in page


def test_what_reads_single_clients_is_refused_by_name(run, copy):
    for name in ("gradient", "reconstruct", "statistics"):
        done = call("attack", str(copy), name, *given(run)[:2])
        assert (done.code, done.err[:4]) == (2, "E151"), done.err
        assert f"'{name}'" in done.err
        assert "a coordinator keeps no replies of sites" in done.err
        assert done.err.count("\n") == 1
    done = call("attack", str(copy), *given(run)[:2])
    assert done.code == 0, done.err
    assert "gradient: left out, it reads what single clients send" in done.out
    assert set(schema.read_privacy(copy)["attacks"]) == {"membership"}
