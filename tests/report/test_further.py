"""Metrics beside the main score in a comparison's table, JSON and CSV."""

from __future__ import annotations

import json

import pytest

from tests.report.fake_runs import fake_comparison
from unskew.records.record import Record
from unskew.report import page
from unskew.report.analysis import results_table, summary
from unskew.report.analysis.runs import read_comparison
from unskew.runs import score_coverage

COST, AUROC = "own-lower:cost", "auroc"
LAST = 40


def row(t, scope, metric, value, client=None):
    return {"t": t, "scope": scope, "client": client, "metric": metric, "value": value}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two methods, two seeds: AUROC at two clients of twenty; in fedprox's seed 1 it ends in round 39."""
    path = fake_comparison(
        tmp_path_factory.mktemp("further") / "c",
        ["fedavg", "fedprox"],
        2,
        rounds=LAST,
        metrics="auroc,cost.py:cost",
    )
    for run in sorted(path.glob("*--s*")):
        wild = run.name == "fedprox--s1"
        rows = [row(t, "global", AUROC, 0.5 + t / 100) for t in range(1, LAST if wild else LAST + 1)]
        rows += [row(LAST, "global@client", AUROC, 0.75)]
        rows += [row(LAST, "global@client", AUROC, v, k) for k, v in enumerate([0.7, 0.8])]
        rows += [row(LAST, "global", COST, 12.0 + int(run.name[-1]))]
        with open(run / "metrics.jsonl", "a") as file:
            file.writelines(json.dumps(r) + "\n" for r in rows)
    return read_comparison(path)


def test_json_has_every_metric_by_scope(runs):
    """Means over seeds of means over ten rounds; over how many clients; and no scope that nobody has."""
    one, other = json.loads(json.dumps(results_table.as_json(summary.summary_table(runs)), allow_nan=False))
    of = one["further"][AUROC]
    assert set(of) == {"global", "global@client"}
    assert of["global"]["score"]["mean"] == pytest.approx(0.5 + 35.5 / 100)
    assert (of["global@client"]["defined"], of["global@client"]["clients"]) == (2, 20)
    assert one["further"][COST]["global"]["score"] == {"mean": 12.5, "std": pytest.approx(0.5**0.5), "n": 2}
    assert other["further"][AUROC]["global"]["score"]["n"] == 1


def test_the_terminal_and_the_page_say_them_too(runs):
    text = results_table.plain(summary.summary_table(runs))
    assert "AUROC, %, fedavg: global 85.5 ± 0.0, global@client 75.0 ± 0.0 (mean over 2 of 20 clients)" in text
    assert "\ncost, fedprox: global 12.5 ± 0.71" in text
    html = page.page(runs, "c")
    assert "75.0 ± 0.0 (2/20)" in html
    assert "cost (lower is better)" in html


def test_a_value_of_an_earlier_round_is_no_last_value():
    """Predictions were not finite in round 2, so that AUROC was defined in round 1 for the last time."""
    record = Record()
    record.add(
        "metrics",
        [row(1, "global", AUROC, 0.9), row(1, "global", "accuracy", 0.8), row(2, "global", "accuracy", 0.1)],
    )
    record.add("metrics", [row(2, "global@client", AUROC, 0.5), row(2, "global@client", AUROC, 0.5, 3)])
    record.add("metrics", [row(3, "train", "loss", 1.0)])
    assert score_coverage.metric_lines(record, [AUROC]) == [
        "AUROC: global@client 50.0% (mean over 1 of 1 clients)"
    ]
