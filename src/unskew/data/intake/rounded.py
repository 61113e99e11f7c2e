"""Columns whose numbers lie closer together than float32, in which samples travel, tells apart.

Seconds since 1970 are such: float32 has one number for every 128 of them, so that two minutes of the day look alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unskew.data.convert import is_large
from unskew.data.intake.notes import Note, some
from unskew.data.rows import moments

MOST = 0.01
"""How much rounding may move a number, as a part of the column's standard deviation."""


def is_rounded(numbers: np.ndarray) -> bool:
    """Whether float32 moves some number of this column [N] by more than `MOST` of its standard deviation."""
    values = numbers.astype(np.float64)
    if not len(values) or not np.isfinite(values).all() or np.abs(values).max() > np.finfo(np.float32).max:
        return False  # told elsewhere
    spread = float(values.std())
    return float(np.abs(values.astype(np.float32).astype(np.float64) - values).max()) > MOST * spread > 0


def remark(column: str) -> str:
    """What to say of such a column."""
    text = f"the numbers of column {column} lie closer together than float32 tells apart, so they are rounded"
    return f"{text}: subtract what they have in common, or count in larger units"


def notes(parts: Sequence[np.ndarray]) -> list[Note]:
    """Remarks on samples as they were given, where these are columns [N, columns] in memory."""
    columns = {c: None for x in parts if x.ndim == 2 and not is_large(x) for c in _candidates(x) if is_rounded(x[:, c])}
    return [("note", remark(some([str(c) for c in columns], 5)))] if columns else []


def _candidates(x: np.ndarray) -> list[int]:
    """The columns whose numbers are so large beside their deviation that rounding may matter; none of types that float32 holds."""
    if not len(x) or x.dtype.itemsize <= 2 or x.dtype == np.float32:
        return []
    with np.errstate(all="ignore"):  # what is not finite is told elsewhere
        high = np.maximum(np.abs(x.max(0).astype(np.float64)), np.abs(x.min(0).astype(np.float64)))
        return np.flatnonzero(high * np.finfo(np.float32).eps > MOST * moments(x)[1]).tolist()
