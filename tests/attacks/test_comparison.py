"""`compare --privacy`: every finished run is attacked once, beside its score and epsilon."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

import unskew
from tests.cli.calling import call
from unskew.attacks import attack, registry
from unskew.attacks.kinds.membership import Membership
from unskew.attacks.kinds.reconstruct import Reconstruct
from unskew.comparison import training as stage
from unskew.comparison.progress import Cell
from unskew.config import Settings
from unskew.errors import StateError, UsageError
from unskew.methods.registry import parse
from unskew.records import schema
from unskew.report.analysis.leakage import leakage_of, reach
from unskew.report.analysis.runs import read_run
from unskew.report.analysis.stats import Score
from unskew.runs import conformance

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
    monkeypatch.setattr(registry, "names", lambda: FEW)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("privacy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "names", lambda: FEW)
        patch.setattr(Reconstruct, "quick", {"samples": 20, "own": 60, "steps": 20, "exchanges": "last"})
        patch.setattr(Membership, "quick", {"shadows": 2, "clients": 1, "samples": 60})
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
    # few shadows can do worse than the loss alone
    assert len({s["of"].split(", ")[1] for s in membership}) == 2
    assert fedavg["leaks"][0]["value"]["mean"] == max(s["value"] for s in membership)
    page = (path / "report.html").read_text().split('id="h-tradeoff"')[1].split("</section>")[0]
    assert leak["command"].split()[3] in page


def test_what_was_measured_is_not_measured_again(compared, monkeypatch):
    """A resumed comparison, or an attack by hand before it: what stands in privacy.json stays."""
    path, _ = compared
    before = (path / "flea--s0" / "privacy.json").read_bytes()
    monkeypatch.setattr(registry, "names", lambda: FEW)
    monkeypatch.setattr(attack, "_stored_finding", lambda *_: pytest.fail("it was attacked twice"))
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

    def no_run(*_):
        raise StateError("E112", "other bits")

    monkeypatch.setattr(stage, "quick_attacks", no_run)
    stage.attack_all([cell, Cell("local", 0, path, Settings(method="local"))], said.append)
    assert said == ["attacks on fedavg, seed 0", "not measured: E112 other bits"]
    monkeypatch.setattr(schema, "read_privacy", lambda _: {})

    def too_few(*_):
        raise UsageError("E151", "too few samples")

    monkeypatch.setattr(attack, "_stored_finding", too_few)
    said.clear()
    attack.quick_attacks(cell.path, said.append)
    assert said == ["membership: not measured; E151 too few samples"]


def test_what_is_pooled_over_seeds_is_of_one_thing():
    """One seed's age in years squared was averaged with another's scan, the furthest of each seed."""

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


@pytest.mark.parametrize(
    ("method", "payload", "says"),
    [
        ("feddata", "feddata/x", "raw inputs, in clear"),
        ("flea", "flea/labels", "labels, in clear"),
        ("fedmix", "fedmix/y", "labels, averaged"),
        ("fedmix", "fedmix/x", "not measured (measure it: unskew attack RUN context, unskew attack RUN"),
        ("fedavg", "weights", "not measured (measure it: unskew attack RUN gradient, unskew attack RUN"),
    ],
)
def test_what_a_payload_holds_in_clear_is_said_before_a_run(method, payload, says):
    loop = conformance.loop_for(parse(method))
    lines = registry.readers_lines(loop.run.method, loop.fed)
    (line,) = (line for line in lines if f" {payload}: " in line)
    assert f"; {says}" in line
