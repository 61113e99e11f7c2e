"""Scores, tests and tables against hand-worked and SciPy's numbers; the page is whole and escapes what users
wrote."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
import yaml
from scipy.stats import ttest_rel

from tests.report.test_summary import run
from unskew.errors import StateError
from unskew.report import page
from unskew.report.analysis import runs, stats, summary, tables
from unskew.report.figures import svg
from unskew.report.figures.curves import curves
from unskew.report.figures.partition import partition_map
from unskew.report.figures.rows import client_scores


def write_run(folder, method, seed, values, bytes_=1000, name="digits", sizes=(5, 7)):
    """A small run folder as the engine writes it."""
    path = folder / f"{method}--s{seed}"
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(
        yaml.safe_dump(
            {"method": method, "seed": seed, "rounds": len(values), "data": name, "skew": "iid", "lr": 0.1}
        )
    )
    federation = {
        "name": name,
        "classes": ["a", "<b>"],
        "clients": 2,
        "names": ["client-0", "client-1"],
        "skew": "iid",
        "shape": [1],
        "test": 9,
        "sizes": {"train": list(sizes), "val": [], "test": [4, 5]},
        "labels": [[5, 0], [3, 4]],
    }
    (path / "federation.json").write_text(json.dumps(federation))
    (path / "env.json").write_text(json.dumps({"torch": "x"}))
    rows = []
    for t, v in enumerate(values, 1):
        rows.append({"t": t, "scope": "global", "client": None, "metric": "accuracy", "value": v})
        for scope in ("global@client", "personal@client"):
            rows += [
                {"t": t, "scope": scope, "client": None, "metric": m, "value": x}
                for m, x in (("mean", v), ("worst", v / 2))
            ]
    rows += [
        {"t": len(values), "scope": "global@client", "client": k, "metric": "accuracy", "value": values[-1]}
        for k in (0, 1)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows) + '{"torn')
    ledger = [
        {
            "t": t,
            "way": w,
            "share": "w",
            "clients": [0, 1],
            "bytes": bytes_,
            "reads": "sum",
            "guarantee": "none",
        }
        for t in range(1, len(values) + 1)
        for w in ("up", "down")
    ]
    (path / "ledger.jsonl").write_text("".join(json.dumps(r) + "\n" for r in ledger))
    events = [{"t": t, "code": "round", "asked": [0, 1], "answered": [0]} for t in range(1, len(values) + 1)]
    (path / "events.jsonl").write_text("".join(json.dumps(r) + "\n" for r in events))
    return path


@pytest.fixture
def comparison(tmp_path):
    for seed in range(3):
        write_run(tmp_path, "good", seed, [0.5, 0.8, 0.90 + 0.01 * seed])
        write_run(tmp_path, "poor", seed, [0.2, 0.6, 0.50 - 0.02 * seed**2], bytes_=3000)
        write_run(tmp_path, "local", seed, [0.9, 0.99, 0.99])
    (tmp_path / "compare.yaml").write_text(
        yaml.safe_dump({"methods": ["good", "poor", "local"], "seeds": [0, 1, 2]})
    )
    return tmp_path


def test_last_best_and_mean_of_the_last_ten():
    values = np.array([0.1] * 5 + [0.9] + [0.5] * 9)
    rounds = np.arange(1, 16)
    assert stats.last_best_mean10(rounds, values) == pytest.approx((0.5, 0.9, 0.54))
    assert stats.last_best_mean10(10 * rounds, values) == pytest.approx(
        (0.5, 0.9, 0.5)
    )  # rounds, not evaluations
    assert all(v != v for v in stats.last_best_mean10(rounds[:0], values[:0]))


def test_stability_is_the_deviation_over_the_last_fifty_rounds():
    rounds, values = np.arange(1, 101), np.array([0.0] * 50 + [0.4, 0.6] * 25)
    assert stats.stability(rounds, values) == pytest.approx(np.std([0.4, 0.6] * 25, ddof=1))


def test_holm_and_the_paired_test():
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert stats.holm([0.5, float("nan"), 0.9])[0] == 1.0
    assert stats.holm([0.8, 0.9]) == [1.0, 1.0]
    a, b = [0.9, 0.8, 0.85, 0.7, 0.9], [0.7, 0.75, 0.6, 0.8, 0.7]
    assert stats.paired_p(a, b) == pytest.approx(ttest_rel(a, b).pvalue)
    assert stats.paired_p(a, a) == 1.0
    assert stats.paired_p([0.3, 0.2] * 3, [0.2, 0.1] * 3) == 0.0
    for unit in (1e-15, 1e9):  # a target in its own unit
        ours, theirs = (np.array(scores) * unit for scores in (a, b))
        assert stats.paired_p(ours, theirs) == pytest.approx(ttest_rel(a, b).pvalue)
        assert stats.paired_p(ours, ours) == 1.0
        assert stats.paired_p(ours, ours + 0.125 * unit) == 0.0
    assert math.isnan(stats.paired_p(a, b[:4]))
    assert math.isnan(stats.paired_p(a[:4], b[:4]))  # four seeds are too few


def test_the_interval_of_a_mean_is_students():
    mean, low, high = stats.interval([1.0, 2.0, 3.0])
    assert (mean, low, high) == (
        2.0,
        pytest.approx(2 - 4.302652729911275 / 3**0.5),
        pytest.approx(2 + 4.302652729911275 / 3**0.5),
    )
    assert [math.isnan(x) for x in stats.interval([1.0])] == [False, True, True]


def test_a_short_run_is_ranked_by_its_last_round():
    """M17: the mean of the last ten of a run of ten rounds is its learning curve."""
    curve = [0.1, 0.2, 0.9]
    short, long = run("m", accuracy=curve), run("m", accuracy=[*[0.1] * 27, *curve])
    assert stats.ranks_by_last_round([long, short])
    assert not stats.ranks_by_last_round([long])
    assert stats.final(long, True) == stats.final(short, True) == 0.9
    assert stats.final(long, False) == pytest.approx((0.1 * 7 + sum(curve)) / 10)


def test_the_table_of_a_comparison(comparison):
    rows = {r.method: r for r in summary.summary_table(runs.read_comparison(comparison), target=0.6)}
    assert list(rows) == ["good", "poor", "local"]
    assert rows["good"].leads
    assert not rows["local"].leads  # a reference, though higher
    assert rows["good"].last.mean == pytest.approx(0.91)
    assert rows["good"].last.std == pytest.approx(0.01)
    assert rows["good"].to_target.mean == 2 * 2 * 2 * 1000  # reached in round 2
    assert rows["poor"].up == 3 * 2 * 3000
    gap = rows["poor"].gap
    assert gap.behind == pytest.approx(np.mean([0.9 + 0.01 * s - (0.5 - 0.02 * s**2) for s in range(3)]))
    assert (gap.lost, gap.seeds) == (3, 3)
    text = tables.plain(list(rows.values()))
    assert "91.0 ± 1.0" in text
    assert "reference" in text
    assert tables.latex(list(rows.values())).count(r"\\") == 4
    assert json.loads(json.dumps(tables.as_json(list(rows.values())), allow_nan=False))[0]["method"] == "good"
    assert len(tables.as_csv(list(rows.values())).splitlines()) == 4


def test_the_page_is_one_whole_file(comparison, tmp_path):
    out = page.write_report(comparison, tmp_path / "r.html")
    text = out.read_text()
    assert not re.search(r"src\s*=|href\s*=\s*[\"'](?!#)|url\(|@import|https?://", text)
    assert text.count("<svg") >= 5
    assert "good reaches" in text
    assert f"{100 * (0.91 - 0.5 + 0.02 * 5 / 3):.1f} points ahead of poor (in 3 of 3 seeds)" in text
    assert "unskew compare good poor" in text
    assert len(text) < 300_000


def test_what_users_wrote_is_escaped(tmp_path):
    path = write_run(tmp_path, "m", 0, [0.5, 0.6], name="<script>alert(1)</script>")
    text = page.write_report([path], tmp_path / "r.html").read_text()
    assert text.count("<script>") == 1  # the page's own
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text
    assert "<b>" not in text


def test_folders_that_are_no_runs(tmp_path):
    with pytest.raises(StateError, match="E117"):
        runs.read_run(tmp_path)
    with pytest.raises(StateError, match="E117"):
        runs.read_comparison(tmp_path)


@pytest.mark.parametrize("places", [[10, 11, 12], [100, 100, 100, 100], [0, 200, 199], [5]])
def test_labels_are_moved_apart_and_stay_inside(places):
    found = svg.separate_labels(places, 16, 0, 200)
    assert min(np.diff(sorted(found)), default=16) >= 16 - 1e-9
    assert min(found) >= 0
    assert max(found) <= 200
    assert np.argsort(found, kind="stable").tolist() == np.argsort(places, kind="stable").tolist()


def test_pictures_with_few_or_many_clients():
    for K in (1, 4, 200, 500):
        federation = {
            "labels": [[1, 0, 3]] * K,
            "classes": ["a", "b", "c"],
            "names": [f"client-{k}" for k in range(K)],
            "clients": K,
        }
        drawn = partition_map(federation)
        cells = sum(part.count("M") for part in re.findall(r'class="(?:q\d|bar)" d="([^"]*)"', drawn))
        assert cells == min(K, 200) * 3  # two classes and a bar for the size
    assert curves([], "x", "y") == ""
    assert client_scores([], "x") == ""
