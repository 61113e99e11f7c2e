"""The training and the test samples of a set as numbers, whether a sample has one input or several."""

from __future__ import annotations

from typing import Any

import numpy as np

from unskew.data.convert import samples
from unskew.data.intake.labels import label_array
from unskew.data.intake.notes import Note
from unskew.data.layout import Layout
from unskew.data.packed import are_inputs, difference, packed
from unskew.errors import DataError

Labelled = tuple[Any, Any]
"""(x, y) as they were given."""


def parts_in(
    name: str, train: Labelled, test: Labelled, as_is: bool
) -> tuple[list[np.ndarray], Layout | None, tuple[Note, ...]]:
    """(the training samples and, where there are any, the test samples; how several inputs lie in them; what was done).

    as_is: also inputs whose shapes look like images with channels last or missing.
    Raises DataError (E403) where training and test samples differ in their inputs, (E404) where labels of several inputs are
    neither one each nor one for every place of one of them; and as `samples` and `packed` do.
    """
    given = [part for part in (train, test) if part[0] is not None]
    several = [are_inputs(*part) for part in given]
    if not any(several):
        return [samples(x, name) for x, _ in given], None, ()
    if not all(several):
        one, other = ("several inputs", "one") if several[0] else ("one input", "several")
        raise DataError("E403", f"{name}: training samples have {one} and test samples {other}; give both alike.")
    rows = [packed(x, label, as_is) for (x, _), label in zip(given, (name, f"{name}, test samples"))]
    for _, y in given:
        check_answers(name, label_array(name, y), rows[0].layout)
    if rows[0].layout != rows[-1].layout:
        text = difference(rows[0].layout, rows[-1].layout)
        raise DataError("E403", f"{name}: training and test samples have other inputs: {text}; give both alike.")
    return [part.x for part in rows], rows[0].layout, rows[0].notes


def check_answers(name: str, y: np.ndarray, layout: Layout) -> None:
    """Raises DataError (E404) unless labels of samples with several inputs are one each, rows of zeros and ones, or whole
    numbers for every place of an input that is a sequence."""
    flags = y.dtype.kind in "biuf" and y.ndim == 2 and bool(((y == 0) | (y == 1)).all())
    if y.ndim < 2 or flags or (y.ndim == 2 and y.dtype.kind in "iu" and y.shape[1] in layout.lengths):
        return
    text = f"labels are {list(y.shape)}, and samples with several inputs ({layout}) have one class, several labels or a number each"
    raise DataError(
        "E404", f"{name}: {text}, or a whole number for every place of an input; give [N], or rows of such."
    )


def sequence_in(x: np.ndarray, layout: Layout, y: np.ndarray) -> np.ndarray:
    """Of rows [N, D] the input that is a sequence of whole numbers with a place for each label y [N, places], [N, places];
    NaN where none is such and another input has so many places; [N, 0] where none has.
    """
    places = y.shape[1] if y.ndim == 2 else 0
    for i, each in enumerate(layout.inputs):
        if each.shape == (places,) and each.kind == "int64":
            return layout.column(x, i)
    return np.full((len(x), places if places in layout.lengths else 0), np.nan, np.float32)
