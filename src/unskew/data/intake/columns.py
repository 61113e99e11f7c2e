"""Facts about samples, such as their sites: whole numbers stay, words are numbered in alphabetical order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from unskew.data.convert import array_of, is_mapped
from unskew.data.intake import cells
from unskew.errors import DataError

SITES = (
    *("site", "client", "domain", "hospital", "centre", "center", "institution"),
    *("subject", "patient", "speaker", "user", "scanner", "device"),
)
"""Names of columns that say where a sample is from; the first that a set has is taken for its sites."""


def site_of(columns: Mapping[str, Any]) -> str:
    """The column that says where samples are from, "" if none does."""
    lower = {name.lower(): name for name in columns}
    return next((lower[name] for name in SITES if name in lower), "")


def numbered(
    name: str, columns: Mapping[str, Any] | None, test_columns: Mapping[str, Any] | None
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, tuple[str, ...]]]:
    """(columns of the training samples, of the test samples, names of the values of those that hold words).

    Raises DataError (E403) for a column with missing values or of another shape than [N].
    """
    train = {n: _checked(name, n, v) for n, v in (columns or {}).items()}
    test = {n: _checked(name, n, v) for n, v in (test_columns or {}).items()}
    words: dict[str, tuple[str, ...]] = {}
    for column in train:
        both = [part[column] for part in (train, test) if column in part]
        if any(v.dtype.kind in "US" for v in both):
            known, codes = np.unique(np.concatenate([v.astype(str) for v in both]), return_inverse=True)
            words[column] = tuple(map(str, known))
            train[column], rest = codes[: len(both[0])], codes[len(both[0]) :]
            if len(both) > 1:
                test[column] = rest
    return train, test, words


def _checked(name: str, column: str, values: Any) -> np.ndarray:
    v = array_of(values)
    v = np.array(v) if is_mapped(v) else v
    if v.ndim != 1:
        raise DataError(
            "E403", f"{name}: column '{column}' is {list(v.shape)}; it must hold one value per sample, [N]."
        )
    missing = cells.missing(v)
    if missing.any():
        raise DataError(
            "E403",
            f"{name}: column '{column}' has no value for sample {int(np.argmax(missing))} "
            f"({int(missing.sum()):,} are missing); fill it, or leave these samples out.",
        )
    if v.dtype.kind == "f" and (v == np.round(v)).all():
        return v.astype(np.int64)
    return cells.words(v) if v.dtype.kind in "OUS" else v
