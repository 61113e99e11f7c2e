"""Sets of which nearly all samples are of one class, so that a model which always guesses it looks good by its accuracy."""

from __future__ import annotations

import numpy as np

from unskew.data.dataset import Dataset
from unskew.data.federation import Federation
from unskew.errors import excerpt

MOST = 0.9
"""The share of samples of one class from which on a user is told."""
METRICS = "auroc,balanced_accuracy"


def lopsided(data: Dataset | Federation) -> str:
    """What to say of such a set, "" of any other, and where samples have no single class each."""
    if data.target or data.several or data.masks or not len(data.y):
        return ""
    counts = np.bincount(data.y, minlength=len(data.classes))
    share = counts.max() / counts.sum()
    if not MOST <= share < 1:
        return ""
    often, present = int(counts.argmax()), np.flatnonzero(counts)
    rare = int(present[counts[present].argmin()])
    return (
        f"{share:.1%} of the training samples are of class {excerpt(data.classes[often], 40)}, so a model that always answers "
        f"so has that accuracy; {excerpt(data.classes[rare], 40)} has {counts[rare]:,}. Look at --metrics {METRICS} as well"
    )
