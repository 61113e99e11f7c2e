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
    not one each; and as `samples` and `packed` do.
    """
    given = [part for part in (train, test) if part[0] is not None]
    several = [are_inputs(*part) for part in given]
    if not any(several):
        return [samples(x, name) for x, _ in given], None, ()
    if not all(several):
        one, other = ("several inputs", "one") if several[0] else ("one input", "several")
        raise DataError("E403", f"{name}: training samples have {one} and test samples {other}; give both alike.")
    for _, y in given:
        check_answers(name, label_array(name, y))
    rows = [packed(x, label, as_is) for (x, _), label in zip(given, (name, f"{name}, test samples"))]
    if rows[0].layout != rows[-1].layout:
        text = difference(rows[0].layout, rows[-1].layout)
        raise DataError("E403", f"{name}: training and test samples have other inputs: {text}; give both alike.")
    return [part.x for part in rows], rows[0].layout, rows[0].notes


def check_answers(name: str, y: np.ndarray) -> None:
    """Raises DataError (E404) unless labels of samples with several inputs are one each, or rows of zeros and ones."""
    if y.ndim > 2 or (y.ndim == 2 and not (y.dtype.kind in "biuf" and ((y == 0) | (y == 1)).all())):
        text = f"labels are {list(y.shape)}, and samples with several inputs have one class, several labels or a number each"
        raise DataError("E404", f"{name}: {text}; give [N], or rows of zeros and ones.")
