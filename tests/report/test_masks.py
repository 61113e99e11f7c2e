"""The report of runs on masks: Dice is what is told, and cells hold shares of pixels."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest

from tests.report.fake_runs import fake_comparison
from unskew.report import page
from unskew.report.analysis import results_table, summary
from unskew.report.analysis.runs import read_comparison
from unskew.report.sections.partition import partition_map

SITES = ["DRIVE", "CHASE_DB1", "STARE"]
PIXELS = [[900, 100], [950, 50], [930, 70]]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """Fake runs of three clients, told as runs on masks."""
    at = fake_comparison(
        tmp_path_factory.mktemp("masks") / "eyes",
        ["fedavg", "flea", "local"],
        seeds=2,
        clients=3,
        rounds=6,
        classes=2,
    )
    for run in at.glob("*--s*"):
        path = run / "federation.json"
        told = json.loads(path.read_text())
        told |= {"unit": "pixels", "labels": PIXELS, "names": SITES, "classes": ["background", "vessel"]}
        told["sizes"]["train"] = [20, 20, 14]
        path.write_text(json.dumps(told))
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for row in rows:
            row["metric"] = {"accuracy": "dice", "macro_f1": "dice_both"}.get(row["metric"], row["metric"])
        (run / "metrics.jsonl").write_text(
            "".join(json.dumps(r) + "\n" for r in rows if r["metric"] != "worst_class")
        )
    return at


def test_dice_is_the_score(comparison):
    runs = read_comparison(comparison)
    assert {r.metric for r in runs} == {"dice"}
    rows = summary.summary_table(runs)
    first = [r for r in runs if r.method == "fedavg"]
    assert rows[0].last.mean == pytest.approx(np.mean([r.series("global", "dice")[1][-1] for r in first]))
    assert rows[0].dice_both.n == 2
    assert rows[0].macro_f1.n == 0
    assert "Dice in %, mean ± sample standard deviation over 2 seeds" in results_table.note(rows)
    line = next(csv.DictReader(io.StringIO(results_table.as_csv(rows))))
    assert line["metric"] == "dice"
    assert float(line["dice_both.mean"]) == pytest.approx(rows[0].dice_both.mean)
    assert results_table.as_json(rows)[0]["metric"] == "dice"


def test_the_page_speaks_of_dice(comparison):
    text = page.page(read_comparison(comparison), "eyes")
    assert "accuracy" not in text.replace("accuracy for the column", "").lower()
    for piece in (
        "% global Dice after 6 rounds on digits",
        "Dice over rounds",
        "Dice of both classes",
        "Every pixel is labelled",
        "<dt>Dice</dt>",
    ):
        assert piece in text
    assert "worst" in text
    assert "CHASE_DB1" in text


def test_cells_hold_shares_of_pixels(comparison):
    run = read_comparison(comparison)[0]
    drawn = partition_map(run.federation)
    for share in ("90.0", "10.0", "95.0", "5.0"):
        assert f">{share}</text>" in drawn
    assert "share of pixels, %" in drawn
    assert "14 to 20 samples" in drawn
    assert ">900<" not in drawn
