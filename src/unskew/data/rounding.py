"""Quotas rounded to whole numbers that keep their sum."""

from __future__ import annotations

import numpy as np


def largest_remainder(quota: np.ndarray, most: np.ndarray) -> np.ndarray:
    """Whole numbers near the quotas, int64, none above `most`, which add up to the rounded sum of the quotas.

    What is missing after rounding down goes, one each, to the largest remainders, the first of equal ones before the
    others. If `most` leaves no room, the numbers add up to less.
    """
    whole = np.minimum(np.floor(quota).astype(np.int64), most)
    missing = round(float(quota.sum())) - int(whole.sum())
    for i in np.argsort(-(quota - whole), kind="stable"):
        if missing <= 0:
            break
        extra = min(1, int(most[i] - whole[i]))
        whole[i] += extra
        missing -= extra
    return whole
