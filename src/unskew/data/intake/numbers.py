"""A column or array of numbers to predict, read as the target of a regression."""

from __future__ import annotations

from typing import Any

import numpy as np

from unskew.data.convert import array_of
from unskew.data.intake.features import column_of_numbers
from unskew.data.intake.labels import Labels
from unskew.data.intake.notes import Note
from unskew.data.intake.sheets import Sheet
from unskew.data.intake.targets import column_named
from unskew.data.target import Target, check_targets
from unskew.errors import DataError, excerpt


def read_targets(name: str, ys: tuple[Any, Any], classes: Any, target: str | Target) -> Labels:
    """The targets of training and test samples, float64 [N], from arrays [N] or [N, 1].

    name: of the set. ys: of both, the second None without a test set. target: its name, or with constants of its own.
    Raises DataError: E403 where classes are named, too, E404 for what is no number.
    """
    if classes is not None:
        raise DataError("E403", f"{name}: classes name labels, and target a number; give one of them.")
    y, *rest = [_numbers(name, array_of(part)) for part in ys if part is not None]
    y_test = rest[0] if rest else y[:0]
    check_targets(name, y, y_test)
    wished = Target(target) if isinstance(target, str) else target
    constants = "as given" if wished.given else "the mean and standard deviation of the training samples"
    notes: list[Note] = [("labels", f"'{wished.name}' is predicted as a number; center and scale are {constants}")]
    return Labels(y, y_test, (wished.name,), tuple(notes), wished)


def target_column(sheet: Sheet, target: Target) -> tuple[str, np.ndarray]:
    """(the column that a target names, its numbers, float64 [N]).

    Raises DataError: E403 for a column that is not there, E404 for one of words, E405 for missing and mistaken values.
    """
    column = column_named(sheet.columns, target.name, sheet.name)
    values = column_of_numbers(sheet, column, sheet.columns[column])
    if values is None:
        raise DataError(
            "E404",
            f"{sheet.name}: the target '{column}' holds words, such as {excerpt(str(sheet.columns[column][0]), 30)}; a target is a number. "
            f"Words are classes: label={column}.",
        )
    return column, values


def _numbers(name: str, y: np.ndarray) -> np.ndarray:
    """float64 [N]. Raises DataError (E404) for words and for several numbers a sample."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.dtype.kind == "O" and all(isinstance(v, int | float | np.number) or v is None for v in y.reshape(-1).tolist()):
        y = y.astype(np.float64)  # None as NaN, which is refused by its row
    if y.ndim != 1 or y.dtype.kind not in "biuf":
        raise DataError(
            "E404", f"{name}: targets are {y.dtype} {list(y.shape)}; a regression takes one number a sample, [N]."
        )
    return y.astype(np.float64)
