"""`compare --privacy`: every finished run is attacked once, beside its score and epsilon, and nothing that
hinders it fails."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import unskew
from tests.cli.calling import call
from unskew.attacks import catalogue, perform
from unskew.comparison import training as stage
from unskew.comparison.progress import Cell
from unskew.config import Settings
from unskew.errors import StateError, UsageError
from unskew.records import schema
from unskew.report.analysis import leakage
from unskew.report.analysis.leakage import leakage_of, reach
from unskew.report.analysis.runs import read_run
from unskew.report.analysis.stats import Score
from unskew.report.figures.curves import Axis, Point, scatter

SMALL = (
    "--clients",
    "3",
    "--samples",
    "30",
    "--skew",
    "iid",
    "--rounds",
    "2",
    "--epochs",
    "1",
    "--batch",
    "10",
)
FEW = {"membership": "", "reconstruct": "", "audit": ""}


@pytest.fixture
def few_attacks(monkeypatch):
    monkeypatch.setattr(catalogue, "names", lambda: FEW)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("privacy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalogue, "names", lambda: FEW)
        words = (
            "compare",
            "fedavg",
            "flea",
            *SMALL,
            "--model",
            "mlp(hidden=[16])",
            "--seeds",
            "1",
            "--no-references",
        )
        done = call(*words, "--processes", "1", "--privacy", "--name", "c", "--json", cwd=folder)
    assert done.code == 0, done.err
    return folder / "runs" / "c", json.loads(done.out)


def test_scores_stand_beside_what_attacks_found(compared):
    path, printed = compared
    fedavg, flea = (row["privacy"] for row in printed["rows"])
    assert json.loads((path / "compare.json").read_text()) == printed["rows"]
    assert [(leak["attack"], leak["payload"]) for leak in fedavg["leaks"]] == [("membership", "w")]
    assert {leak["attack"] for leak in flea["leaks"]} == {"membership", "reconstruct"}
    assert (fedavg["epsilon"], fedavg["not_measured"], flea["in_clear"]) == (
        None,
        {},
        {"flea/labels": "labels, in clear"},
    )
    kept = schema.read_privacy(path / "flea--s0")[schema.ATTACKS]["reconstruct"]
    best = max((s for s in kept["scores"] if s["main"]), key=reach)
    (leak,) = (leak for leak in flea["leaks"] if leak["attack"] == "reconstruct")
    assert leak["value"]["mean"] == best["value"]
    assert leak["reach"]["mean"] == pytest.approx(1 - best["value"] / best["floor"])
    membership = [
        s
        for s in schema.read_privacy(path / "fedavg--s0")[schema.ATTACKS]["membership"]["scores"]
        if s["main"]
    ]
    assert (
        len({s["of"].split(", ")[1] for s in membership}) == 2
    )  # few shadows can do worse than the loss alone
    assert fedavg["leaks"][0]["value"]["mean"] == max(s["value"] for s in membership)
    assert "--seeds 1 --privacy --no-references</" in (path / "report.html").read_text()
    page = (path / "report.html").read_text().split('id="tradeoff"')[1].split("</section>")[0]
    assert "Accuracy against leakage" in page
    assert "The same, membership alone" in page
    assert leak["command"].split()[3] in page


def test_what_was_measured_is_not_measured_again(compared, monkeypatch):
    """A resumed comparison, or an attack by hand before it: what stands in privacy.json stays."""
    path, _ = compared
    before = (path / "flea--s0" / "privacy.json").read_bytes()
    monkeypatch.setattr(catalogue, "names", lambda: FEW)
    monkeypatch.setattr(perform, "_stored_finding", lambda *_: pytest.fail("it was attacked twice"))
    content = schema.read_privacy(path / "fedavg--s0")
    assert set(content[schema.ATTACKS]) == {"membership"}
    again = call("resume", str(path))
    assert again.code == 0, again.err
    assert "attacks on flea, seed 0" in again.out
    assert "labels, in clear" in again.out
    assert (path / "flea--s0" / "privacy.json").read_bytes() == before
    results = unskew.Comparison(path).leakages()
    assert [row.method for row in results] == ["fedavg", "flea"]
    assert results[0].worst.attack == "membership"


@pytest.mark.usefixtures("few_attacks")
def test_what_cannot_be_attacked_is_told_and_fails_nothing(compared, monkeypatch):
    path, _ = compared
    said = list[str]()
    cell = Cell("fedavg", 0, path / "fedavg--s0", Settings())

    def no_scene(*_):
        raise StateError("E112", "other bits")

    monkeypatch.setattr(stage, "quickly", no_scene)
    stage.attack_all([cell, Cell("local", 0, path, Settings(method="local"))], said.append)
    assert said == ["attacks on fedavg, seed 0", "not measured: E112 other bits"]
    monkeypatch.setattr(schema, "read_privacy", lambda _: {})

    def too_few(*_):
        raise UsageError("E151", "too few samples")

    monkeypatch.setattr(perform, "_stored_finding", too_few)
    said.clear()
    perform.quickly(cell.path, said.append)
    assert said == ["membership: not measured; E151 too few samples"]


def test_a_comparison_in_python_is_attacked_too(tmp_path, monkeypatch):
    attacked = list[Cell]()
    monkeypatch.setattr(stage, "attack_all", lambda cells, say: attacked.extend(cells))
    settings = {
        "clients": 3,
        "samples": 20,
        "skew": "iid",
        "rounds": 1,
        "epochs": 1,
        "model": "mlp(hidden=[8])",
    }
    few = {"seeds": 1, "references": False, "folder": tmp_path, "progress": False, "processes": 1}
    done = unskew.compare(["fedavg"], "digits", privacy=True, **few, **settings)
    assert [cell.method for cell in attacked] == ["fedavg"]
    assert "privacy: true" in (done.path / "compare.yaml").read_text()
    assert done.leakages()[0].unmeasured == {"w": ["gradient", "membership"]}
    assert "not measured by gradient, membership" in leakage.plain(done.leakages())


def test_what_is_pooled_over_seeds_is_of_one_thing():
    """One seed's age in years squared was averaged with another's scan, where each was the furthest of its
    seed."""

    def run(*scores: tuple[str, float, float]) -> Any:
        base = {"payload": "f", "metric": "MSE", "low": None, "high": None, "ceiling": 0.0, "main": True}
        listed = [base | {"of": of, "value": value, "floor": floor} for of, value, floor in scores]
        facts = SimpleNamespace(share="f", way="up", kind="features", samples=1, sum_of=0)
        attacks = {"reconstruct": {"scores": listed, "command": "c"}} if scores else {}
        return SimpleNamespace(attacks=attacks, traffic=[facts], privacy={}, federation={}, metric="accuracy")

    seeds = [
        run(("age", 10.0, 100.0), ("scan", 0.02, 0.1)),
        run(("age", 60.0, 100.0), ("scan", 0.01, 0.1)),
        run(),
    ]
    (leak,) = leakage_of("flea", seeds, Score(0.5, 0.1, 3)).leaks
    assert (leak.of, leak.floor, leak.n) == ("scan", pytest.approx(0.1), 2)
    assert leak.value.mean == pytest.approx(0.015)
    apart = [run(("9 own", 10.0, 100.0)), run(("8 own", 60.0, 100.0))]
    (leak,) = leakage_of("flea", apart, Score(0.5, 0.1, 2)).leaks
    assert leak.value.mean == pytest.approx(35)


def test_nothing_is_leaked_where_there_is_nothing_to_learn():
    """Images that are all alike: what was 0.3 off without and with the payload read as 30 % of what raw
    samples tell."""
    same = {"value": 0.3, "low": 0.2, "high": 0.4, "floor": 0.0, "ceiling": 0.0}
    assert [reach(same, name) for name in ("value", "low", "high")] == [0, 0, 0]
    assert reach(same | {"ceiling": None}) == 0.3


def test_seeds_are_pooled_and_a_reach_is_bounded(compared, monkeypatch):
    path, _ = compared
    runs = [read_run(path / "fedavg--s0") for _ in range(2)]
    for run, value in zip(runs, (0.6, 0.8)):
        score = {
            "payload": "w",
            "of": "x",
            "metric": "AUC",
            "low": 0,
            "high": 1,
            "floor": 0.5,
            "ceiling": 1.0,
            "main": True,
        }
        run.__dict__["attacks"] = {"membership": {"scores": [score | {"value": value}], "command": "c"}}
    (leak,) = leakage_of("fedavg", runs, Score(0.5, 0.1, 2)).leaks
    assert leak.value.mean == pytest.approx(0.7)
    assert leak.value.high == pytest.approx(
        0.7 + 12.7062 * 0.1, rel=1e-4
    )  # Student's t with one degree of freedom
    assert (leak.reach.mean, leak.reach.low, leak.reach.high) == (pytest.approx(0.4), 0, 1)
    runs[1].__dict__["attacks"]["membership"]["scores"][0]["value"] = 0.1
    (leak,) = leakage_of("fedavg", runs[1:], Score(0.5, 0.1, 1)).leaks
    assert (leak.value.mean, leak.reach.mean) == (0.1, 0)


def test_a_bound_on_epsilon_is_no_share_of_what_the_samples_tell(compared):
    """0.7 without a claim was 70 % of the way to the raw samples, and led the table."""
    path, _ = compared
    run = read_run(path / "fedavg--s0")
    score = {"payload": "w", "of": "x", "low": 0, "high": 1, "main": True}
    auc = score | {"metric": "AUC", "value": 0.6, "floor": 0.5, "ceiling": 1.0}
    bound = score | {"metric": "epsilon, lower bound at 95 %", "value": 0.7, "floor": 0.0, "ceiling": None}
    audit = {"audit": {"scores": [bound], "command": "a"}}
    run.__dict__["attacks"] = audit | {"membership": {"scores": [auc], "command": "c"}}
    row = leakage_of("fedavg", [run], Score(0.5, 0.1, 1))
    assert row.worst is not None
    assert (row.worst.attack, len(row.leaks)) == ("membership", 1)
    run.__dict__["attacks"] = audit
    assert leakage_of("fedavg", [run], Score(0.5, 0.1, 1)).unmeasured["w"] == ["gradient", "membership"]


def test_epsilon_is_that_of_the_models_for_the_seed_that_is_protected_least(compared):
    path, _ = compared
    runs = [read_run(path / "fedavg--s0") for _ in range(2)]
    for run, epsilon in zip(runs, (2.0, 3.0)):
        run.__dict__["privacy"] = {
            "dp": {"epsilons": [{"epsilon": epsilon, "reading": "r"}, {"epsilon": None}]}
        }
    assert (
        leakage_of("m", runs, Score(0.5, 0, 2)).epsilon == math.inf
    )  # a guarantee of something else than the weights
    for run in runs:
        for traffic in run.traffic:
            object.__setattr__(traffic, "guarantee", "dp")
    row = leakage_of("m", runs, Score(0.5, 0, 2))
    assert (row.epsilon, row.reading) == (3.0, "r")
    assert leakage.plain([row]).splitlines()[-1] == "epsilon of m: r"  # the unit, and delta


def test_a_point_without_epsilon_has_a_lane_of_its_own():
    points = [
        Point("a", "m0", 2.0, 2.0, 2.0, 0.8),
        Point("<b>", "m1", math.inf, math.inf, math.inf, 0.9, 0.02),
    ]
    drawn = scatter(points, Axis("epsilon", log=True, beyond="none"), "accuracy, %")
    assert ">none</text>" in drawn
    assert "&lt;b&gt;: none, 90.0 %" in drawn
    assert "NaN" not in drawn
    assert "inf" not in drawn
    assert scatter(points[1:], Axis("epsilon"), "accuracy, %") == ""
    assert scatter([Point("a", "m0", np.nan, 0, 0, 0.8)], Axis("epsilon"), "accuracy, %") == ""
