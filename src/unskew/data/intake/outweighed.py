"""Targets of which a few values, far from all others, are most of what a squared error counts."""

from __future__ import annotations

import numpy as np

from unskew.data.dataset import Dataset
from unskew.data.federation import Federation

FEW = 0.01
"""The share of the values that are held against all others."""
MOST = 0.9
"""The share of the squared distances from the median from which on a user is told."""
LEAST = 50
"""Of fewer values one may well be far from the others."""


def outweighed(data: Dataset | Federation) -> str:
    """What to say of a regression whose farthest targets, one in a hundred, are nearly all of the spread; "" of any other."""
    if not data.target or len(data.y) < LEAST:
        return ""
    y = np.asarray(data.y, dtype=np.float64)
    squared = (y - np.median(y)) ** 2
    few = max(1, int(FEW * len(y)))
    farthest = np.argsort(-squared, kind="stable")
    share, others = squared[farthest[:few]].sum() / squared.sum(), y[farthest[few:]]
    if not share > MOST:
        return ""
    which = "target" if few == 1 else f"{few:,} targets"
    make = "makes" if few == 1 else "make"
    return (
        f"the {which} of {len(y):,} farthest from the median, such as {y[farthest[0]]:g} (the others are {others.min():g} to "
        f"{others.max():g}), {make} {share:.0%} of the spread, so training and RMSE are mostly about them; mend them if they are "
        "mistakes, else look at --metrics median_error as well"
    )
