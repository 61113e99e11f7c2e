"""The summary of each method against numbers worked out by hand, and the pages and tables that show them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from unskew.report.analysis import results_table
from unskew.report.analysis.runs import RunData, Traffic
from unskew.report.analysis.stats import bytes_to, rounds_to
from unskew.report.analysis.summary import gaps_to, leader_of, summary_table, target_of
from unskew.report.sections import context_of, final_table, rounds

NAN = float("nan")


def run(method, seed=0, accuracy=(0.5,), first=1, sent=(), **series):
    """A run in memory. accuracy: the global one, from round `first` on. sent: bytes down and up, each, of
    every round.
    series: further ones by "<scope>_<metric>", with "client" and "own" for global@client and
    personal@client."""
    scopes = {"global": "global", "client": "global@client", "own": "personal@client"}
    series = {"global_accuracy": accuracy, **series}
    metrics = {}
    for name, values in ((name, values) for name, values in series.items() if len(values)):
        scope, _, metric = name.partition("_")
        metrics[scopes[scope], metric] = (
            np.arange(first, first + len(values)),
            np.array(values, dtype=float),
        )
    rounds = np.arange(1, len(sent) + 1)
    traffic = [
        Traffic(way, "w", "sum", "none", rounds, np.array(sent), 0) for way in ("up", "down") if len(sent)
    ]
    config = {"method": method, "seed": seed, "rounds": first + len(accuracy) - 1}
    return RunData(Path(f"{method}--s{seed}"), config, {}, {}, metrics, {}, tuple(traffic), [])


def test_the_default_target_is_95_percent_of_the_best_final_score():
    runs = [
        run("fedavg", 0, [0.70]),
        run("fedavg", 1, [0.72]),
        run("flea", 0, [0.83]),
        run("flea", 1, [0.90]),
        run("centralised", 0, [0.99]),  # a reference, so no target
    ]
    assert target_of(runs) == 0.822  # 0.95 * 0.865 = 0.82175, to a tenth of a percent
    assert {s.target for s in summary_table(runs)} == {0.822}
    assert context_of(runs, "x").target == 0.822
    assert math.isnan(target_of(runs[-1:]))


def test_the_page_counts_rounds_and_bytes_to_the_default_target():
    """Final score 0.8 of 0, 0.2, then ten of 0.8, so the target is 76 %, reached in round 3."""
    low = run("low", 0, [0.1, 0.2] + [0.3] * 10, sent=[2_000_000] * 12)
    high = run("high", 0, [0.0, 0.2] + [0.8] * 10, sent=[1_000_000] * 12)
    context = context_of([low, high], "x")
    first, second = context.summaries
    assert (second.target, second.rounds_to.mean, second.reached) == (0.76, 3, 1)
    assert second.to_target.mean == 3 * 2 * 1_000_000
    assert (first.rounds_to.n, first.reached) == (0, 0)
    html = final_table.build(context).html
    assert "MB to 76.0\u00a0%" in html
    assert "Target: 76.0 % global accuracy, 95 % of the best final score." in html
    assert "<td>not reached</td>" in html
    assert "<td>6.00</td>" in html
    assert '<th scope="col">rounds to 76.0 %</th>' in html


def test_a_curve_over_bytes_is_the_mean_over_seeds_from_the_first_round_that_sent(monkeypatch):
    """Seeds that move 2 and 6 MB a round: 4 and 8 MB in the mean. Round 0 sends nothing."""
    lines = []
    monkeypatch.setattr(rounds, "curves", lambda drawn, *labels, **options: lines.extend(drawn) or "")
    rounds._against_bytes(
        context_of([run("m", s, [0.1, 0.2, 0.3], 0, [b, b]) for s, b in enumerate((10**6, 3 * 10**6))], "x")
    )
    assert lines[0].x.tolist() == [4e6, 8e6]
    assert lines[0].y.tolist() == pytest.approx([0.2, 0.3])


def test_seeds_that_never_reach_the_target_are_counted_and_not_averaged():
    """Seed 0 reaches 0.5 in round 2 and seed 1 in round 4, each round moving 2 x 1 MB; seed 2 never does."""
    curves = ([0.1, 0.5, 0.5, 0.5], [0.1, 0.1, 0.1, 0.6], [0.1, 0.1, 0.1, 0.1])
    context = context_of(
        [run("m", s, c, sent=[1_000_000] * 4) for s, c in enumerate(curves)], "x", target=0.5
    )
    (s,) = context.summaries
    assert (s.to_target.mean, s.reached, s.rounds_to.mean, s.rounds_to.n) == (6_000_000, 2, 3, 2)
    html = final_table.build(context).html
    assert "<td>6.00 (2/3)</td>" in html
    assert "<td>3.0 ± 1.4 (2/3)</td>" in html


def test_a_target_is_reached_by_equality_and_counts_its_own_round():
    r = run("m", accuracy=[0.2, 0.5, 0.4, 0.7], sent=[10, 20, 30, 40])
    assert rounds_to(r, 0.5) == 2
    assert rounds_to(r, 0.6) == 4
    assert math.isnan(rounds_to(r, 0.71))
    assert bytes_to(r, 0.5) == 2 * (10 + 20)
    assert bytes_to(r, 0.2) == 2 * 10
    assert math.isnan(bytes_to(r, 0.71))
    # the untrained model was good enough
    assert bytes_to(run("m", accuracy=[0.9, 0.9], first=0, sent=[10]), 0.5) == 0


def test_every_column_has_its_own_series():
    """Means of the last ten of eleven rounds; the first of them is 9 everywhere and must not count."""
    tail = [0.1] * 5 + [0.2] * 5
    series = {
        name: [9, *(base + v for v in tail)]
        for base, name in enumerate(
            (
                "client_mean",
                "client_worst",
                "client_std",
                "own_mean",
                "global_macro_f1",
                "global_worst_class",
                "global_dice_both",
            ),
            start=1,
        )
    }
    short = run("m", 0, [0.9, *tail], sent=[5, 7], **series)
    (s,) = summary_table([replace(short, config={**short.config, "rounds": 30})], target=0.2)
    columns = (s.clients, s.worst, s.spread, s.personal, s.macro_f1, s.worst_class, s.dice_both)
    assert [c.mean for c in columns] == pytest.approx([base + 0.15 for base in range(1, 8)])
    assert (s.last.mean, s.best.mean) == (0.2, 0.9)
    assert s.mean10.mean == pytest.approx(0.15)
    assert s.stability.mean == pytest.approx(np.std([0.9, *tail], ddof=1))
    assert (s.up, s.down) == (12, 12)
    assert (s.leads, s.reference, s.gap, s.n) == (True, False, None, 1)
    assert (s.target, s.rounds_to.mean, s.to_target.mean) == (0.2, 1, 10)


def test_in_a_short_run_every_score_is_of_the_last_round():
    """The last round stood beside means of ten rounds, so that `local` could not be compared with anybody."""
    short = run("m", 0, [0.1, 0.5], client_mean=[0.2, 0.6], client_worst=[0.1, 0.4], own_mean=[0.1, 0.7])
    rows = summary_table([short, run("local", 0, [], own_mean=[0.3, 0.8])])
    assert (rows[0].clients.mean, rows[0].worst.mean, rows[0].personal.mean) == (0.6, 0.4, 0.7)
    assert [row.at_clients for row in rows] == [{0: 0.7}, {0: 0.8}]
    assert results_table.headings(rows)[1:6] == (
        "global last", "global best", "clients mean, last", "clients worst, last", "personal mean, last",
    )  # fmt: skip
    assert [results_table.cells(row)[1:6] for row in rows] == [
        ["50.0", "50.0", "60.0", "40.0", "70.0"],
        ["–", "–", "–", "–", "80.0"],
    ]
    assert len(results_table.headings(rows)) == len(results_table.cells(rows[0]))
    assert "all scores but best are those of the last round" in results_table.note(rows)


def test_the_mean_over_seeds_of_the_final_score_leads():
    runs = [
        run("a", 0, [0.9]),
        run("a", 1, [0.1]),
        run("b", 0, [0.6]),
        run("b", 1, [0.6]),
        run("local", 0, [0.99]),
    ]
    assert leader_of(runs) == "b"
    assert leader_of([run("local", 0, [0.9])]) == ""
    assert [s.leads for s in summary_table(runs)] == [False, True, False]


def test_p_is_against_the_leader_paired_by_seed_and_corrected():
    """Differences to `best` of seeds 0 to 4: 0.1, 0.2, 0.3, 0.2, 0.2, so t = 0.2 / (0.07071 / sqrt(5)) =
    6.325 at 4 degrees of freedom, p = 0.0032; and 0.2, -0.1, 0.3, 0, 0.1, so t = 0.1 / (0.1581 / sqrt(5)) =
    1.414, p = 0.2302."""
    best = [run("best", s, [v]) for s, v in enumerate((0.8, 0.7, 0.9, 0.8, 0.8))]
    near = [run("near", s, [v]) for s, v in enumerate((0.6, 0.8, 0.6, 0.8, 0.7))]
    far = [run("far", s, [v]) for s, v in enumerate((0.7, 0.5, 0.6, 0.6, 0.6))]
    gaps = gaps_to([*reversed(best), *near, *far, run("local", 0, [0.1])], "best")
    p = {method: gap.p for method, gap in gaps.items()}
    assert p == {"near": pytest.approx(0.2302, abs=5e-5), "far": pytest.approx(2 * 0.0032, abs=1e-4)}
    assert (gaps["near"].behind, gaps["near"].lost, gaps["near"].seeds) == (pytest.approx(0.1), 3, 5)
    assert math.isnan(gaps_to([*best, far[1]], "best")["far"].p)
    unscored = [
        *best,
        *near[:4],
        run("near", 4, [], client_mean=[0.5]),
    ]  # nor does a seed count that has no score
    assert gaps_to(unscored, "best")["near"].seeds == 4
    more = [*best[:2], *near, run("near", 7, [0.1])]  # seeds that only one of them has are left out
    assert gaps_to(more, "best")["near"].seeds == 2
