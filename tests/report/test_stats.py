"""Scores and tests against hand-worked and SciPy's numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import ttest_rel

from tests.report.test_summary import run
from unskew.report.analysis import stats


def test_last_best_and_mean_of_the_last_ten():
    values = np.array([0.1] * 5 + [0.9] + [0.5] * 9)
    rounds = np.arange(1, 16)
    assert stats.last_best_mean10(rounds, values) == pytest.approx((0.5, 0.9, 0.54))
    # rounds, not evaluations
    assert stats.last_best_mean10(10 * rounds, values) == pytest.approx((0.5, 0.9, 0.5))
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
    assert math.isnan(stats.paired_p([0.3, 0.2] * 3, [0.2, 0.1] * 3))
    for unit in (1e-15, 1e9):  # a target in its own unit
        ours, theirs = (np.array(scores) * unit for scores in (a, b))
        assert stats.paired_p(ours, theirs) == pytest.approx(ttest_rel(a, b).pvalue)
        assert stats.paired_p(ours, ours) == 1.0
        assert math.isnan(stats.paired_p(ours, ours + 0.125 * unit))
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
