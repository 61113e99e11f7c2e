"""Rows of a table that report what an attack finds: made once, kept beside the run, and bounded."""

from __future__ import annotations

import json

import pytest

import unskew
from tests.experiments.tables import LEAKING, written
from unskew.errors import UsageError
from unskew.experiments import result


def reproduced(folder, text=LEAKING, name="leaking", **options):
    table = written(folder, name, text)
    return unskew.reproduce(table, seeds=1, processes=1, folder=folder, **options)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder whose runs are trained once for all tests."""
    return tmp_path_factory.mktemp("leaks")


def test_rows_report_what_an_attack_found_between_its_bounds(runs, monkeypatch):
    lines = []
    done = reproduced(runs, keep=runs / "docs", say=lines.append)
    told = "attacks 3 on the finished runs"
    assert told in lines
    found = {(e["row"], e["method"]): e for e in done.result["entries"]}
    assert set(found) == {
        *(("accuracy", m) for m in ("FedAvg", "Pairs", "Fours")),
        # FedAvg's clients share nothing like it
        *((row, m) for row in ("pairs", "fewer") for m in ("Pairs", "Fours")),
    }
    kept = json.loads(next(runs.rglob("leaks/context-*.json")).read_text())
    scores = {s["of"]: s for s in kept["scores"] if s["metric"] == "accuracy"}
    values = {100 * scores[f"{n} own samples"]["value"] for n in (40, 60)}
    assert {
        round(found[row, m]["ours"]["mean"], 3) for row in ("pairs", "fewer") for m in ("Pairs", "Fours")
    } >= {round(v, 3) for v in values}
    bounds = found["pairs", "Pairs"]["bounds"]
    assert (bounds["floor"], bounds["ceiling"]) == (50, 100)
    assert bounds["low"] <= found["pairs", "Pairs"]["ours"]["mean"] <= bounds["high"]
    assert found["accuracy", "Pairs"]["bounds"] is None
    page = (runs / "docs" / "leaking.md").read_text()
    assert "| row | method | ours | 95 % | without payload | raw input | last | best | mean-10 |" in page
    assert "Without payload: what the attacker reaches" in page
    margins = done.result["claims"][0]["margins"]
    assert margins["pairs"] == pytest.approx(
        found["pairs", "Pairs"]["ours"]["mean"] - found["pairs", "Fours"]["ours"]["mean"], abs=1e-3
    )
    monkeypatch.setattr(result, "finding_on", lambda *_: pytest.fail("it was attacked twice"))
    lines.clear()
    assert reproduced(runs, say=lines.append).result["entries"] == done.result["entries"]
    assert not any(line.startswith("attacks") for line in lines)
    assert len(list(runs.rglob("leaks/context-*.json"))) == 3  # one a run, and a refusal


def test_a_score_that_the_attack_does_not_have_is_refused_with_those_that_it_has(runs):
    text = LEAKING.replace("of: 60 own samples", "of: 60 samples")
    with pytest.raises(UsageError, match=r"E126 row pairs: 'context' has no score of '60 samples"):
        reproduced(runs, text, rows=["pairs"], methods=["Pairs"])
