"""Numbers that may stand for missing values, as -999 does in many tables."""

from __future__ import annotations

import numpy as np

from unskew.data.intake.notes import counted

CODES = (-9.0, -99.0, -999.0, -9999.0, -99999.0, 99.0, 999.0, 9999.0, 99999.0)


def remark(column: str, numbers: np.ndarray) -> str:
    """What to say of a column of numbers [N] whose smallest or largest is such a code, farther from all others than these are
    from each other; "" of any other."""
    for code in (float(numbers.min()), float(numbers.max())) if len(numbers) else ():
        others = numbers[numbers != code]
        if code not in CODES or not len(others):
            continue
        low, high = float(others.min()), float(others.max())
        if min(abs(code - low), abs(code - high)) > high - low > 0:
            held = counted(len(numbers) - len(others), "row")
            text = f"column '{column}' holds {code:g} in {held}, far from its other values ({low:g} to {high:g})"
            return f"{text}: if it stands for a missing value, fill it or leave these rows out"
    return ""
