"""Columns of a table that tell the label by themselves, as a copy of it does: one value for each class, or the target in another unit.

A column that is only a good hint is none of these: every sample that is looked at must agree.
Letters: n samples that are looked at, D columns, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from unskew.data.dataset import Dataset
from unskew.data.federation import Federation
from unskew.data.intake.notes import some
from unskew.data.rows import chosen, streams
from unskew.errors import excerpt

LOOKED_AT, VALUES = 5_000, 1 << 22
"""Samples, evenly spaced, and values of them that are looked at, at most."""
LEAST, LEAST_OTHERS = 20, 10
"""Samples, or different targets, and samples outside the most frequent class, below which columns may agree by chance."""
MANY = {"has": "have", "is": "are", "tells": "tell"}
OF_RANGE = 1e-5
"""How far from a line numbers may lie, as a share of their range; float32 keeps seven digits."""


def leaks(dataset: Dataset | Federation) -> str:
    """What to say of columns that tell the label, "" where none does, or where samples are not rows of numbers."""
    if dataset.x.ndim != 2 or dataset.masks or len(dataset.y) < LEAST:
        return ""
    rows, columns = _looked_at(dataset.x), list(_columns(dataset))
    if not columns:
        return ""
    x_nD = np.stack([_codes(part) for _, part in _parts(chosen(dataset.x, rows)[:], columns)], axis=1)
    telling = _telling(x_nD, dataset.y[rows], bool(dataset.target))
    if not streams(dataset.x) and telling.any():  # all samples, of the few columns that may be some
        few = [column for column, tells in zip(columns, telling) if tells]
        whole_nD = np.stack([_codes(part) for _, part in _parts(dataset.x, few)], axis=1)
        telling[telling] = _telling(whole_nD, dataset.y, bool(dataset.target))
    names = [name for (name, *_), tells in zip(columns, telling) if tells]
    if not names:
        return ""
    has = "is the target in another unit" if dataset.target else "has a value of its own for each class"
    of_label = "tells a label by itself" if dataset.several else has
    verb, _, rest = of_label.partition(" ")
    several = f"{MANY[verb]} {rest.replace('of its', 'of their').replace('itself', 'themselves')}"
    text = f"{some(names)} {of_label if len(names) == 1 else several} in all training samples"
    return f"{text}: leave out what was made from the labels, or scores mean nothing"


def _looked_at(x: np.ndarray) -> np.ndarray:
    most = min(LOOKED_AT, max(LEAST, VALUES // max(1, x.shape[1])))
    return np.unique(np.linspace(0, len(x) - 1, min(most, len(x))).astype(np.int64))


def _columns(dataset: Dataset | Federation) -> Iterator[tuple[str, int, int]]:
    """(what a column is called, where its numbers begin in a sample, where they end)."""
    form = dataset.intake.form if dataset.intake else {}
    if dataset.layout:
        yield from ((f"input {e.name}", start, end) for e, start, end in dataset.layout.places if e.size == 1)
        return
    if form.get("kind") != "table":
        yield from ((f"column {i}", i, i + 1) for i in range(dataset.x.shape[1]))
        return
    start = 0
    for column, kinds in form["columns"]:
        end = start + numbers_of(kinds)
        yield f"column {excerpt(column, 40)}", start, end
        start = end


def numbers_of(kinds: Sequence[str]) -> int:
    """How many numbers a column of a table becomes. kinds: its words, none of a column of numbers; two of them make one."""
    return 1 if len(kinds) in (0, 2) else len(kinds)


def _parts(x: np.ndarray, columns: list[tuple[str, int, int]]) -> Iterator[tuple[str, np.ndarray]]:
    return ((name, x[:, start:end]) for name, start, end in columns)


def _codes(part: np.ndarray) -> np.ndarray:
    """One number for each sample: that of a column of numbers, or which of a column's words it has, [n]."""
    return part[:, 0] if part.shape[1] == 1 else part.argmax(1).astype(np.float32)


def _telling(x_nD: np.ndarray, y: np.ndarray, numbers: bool) -> np.ndarray:
    """Which columns tell the labels, bool [D]; of several labels a sample, any one of them."""
    if numbers:
        return _on_a_line(x_nD, y)
    tells = np.zeros(x_nD.shape[1], bool)
    for labels in y.T if y.ndim > 1 else [y]:
        tells |= _one_each(x_nD, labels)
    return tells


def _one_each(x_nD: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Which columns have the same value in all samples of a class, and another one in each class, bool [D]."""
    _, first, place, count = np.unique(y, return_index=True, return_inverse=True, return_counts=True)
    if len(count) < 2 or len(y) < LEAST or len(y) - count.max() < LEAST_OTHERS:
        return np.zeros(x_nD.shape[1], bool)
    of_class_CD = x_nD[first]
    tells = (x_nD == of_class_CD[place]).all(0)
    tells[tells] = [len(np.unique(values)) == len(count) for values in of_class_CD[:, tells].T]
    return tells


def _on_a_line(x_nD: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Which columns are a linear function of the target, bool [D]."""
    if len(np.unique(y)) < LEAST:
        return np.zeros(x_nD.shape[1], bool)
    low, high = int(y.argmin()), int(y.argmax())
    begin_D = x_nD[low].astype(np.float64)
    range_D = x_nD[high] - begin_D
    line_nD = begin_D + range_D * ((y - y[low]) / (y[high] - y[low]))[:, None]
    return (np.abs(x_nD - line_nD) <= OF_RANGE * np.abs(range_D)).all(0) & (range_D != 0)
