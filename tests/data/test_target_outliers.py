"""Regressions of which a few targets are most of the squared error are told, before a score hides all
others."""

import numpy as np
import pytest

from unskew import data
from unskew.data.data_overview import facts, table
from unskew.data.data_warnings import target_outliers

X = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)
Y = np.linspace(-10.0, 10.0, 500)


def of(y: np.ndarray) -> data.Dataset:
    return data.arrays(X[: len(y)], y, X[:10], Y[:10], target="dose")


def test_targets_that_outweigh_all_others_are_told():
    y = Y.copy()
    y[[3, 7, 11]] = 10_000, 9_000, 1_000
    text = (
        "the 5 targets of 500 farthest from the median, such as 10000 (the others are -9.91984 to 10), make"
        " 100% of the spread, so training and RMSE are mostly about them; mend them if they are mistakes,"
        " else look at --metrics median_error as well"
    )
    assert target_outliers(of(y)) == text
    assert f"warning  {text}" in table(of(y))
    assert {"about": "warning", "text": text} in facts(of(y))["notes"]


@pytest.mark.parametrize(
    "y",
    [Y, np.exp(np.random.default_rng(1).normal(size=500)), np.append(Y[:48], 9999.0)],
    ids=["even", "skewed", "few"],
)
def test_other_targets_are_not(y):
    assert not target_outliers(of(y))


@pytest.mark.parametrize(("far", "told"), [(29.8, False), (29.9, True)])
def test_it_is_told_from_nine_tenths_of_the_spread_on(far, told):
    """By hand: 99 targets at distance 1 from a median of 0, so that one weighs nine times as much at the root
    of 891, 29.85."""
    y = np.array([-1.0] * 50 + [0.0] + [1.0] * 49 + [far])
    assert bool(target_outliers(of(y))) is told


def test_classes_have_no_spread():
    assert not target_outliers(data.arrays(X, np.arange(500) % 2, X[:10], np.arange(10) % 2))
