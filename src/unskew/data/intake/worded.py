"""Columns of a table that are inputs by themselves, beside a file or others: numbers, or words that become numbers.

Letters: N rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unskew.data.intake.features import Kinds, numbers_as, stacked, turned
from unskew.data.intake.notes import Note, some
from unskew.data.intake.sheets import Sheet
from unskew.errors import DataError, excerpt


def as_inputs(sheet: Sheet, columns: Sequence[str], notes: list[Note]) -> tuple[dict[str, np.ndarray], Kinds]:
    """(these columns as numbers, [N] or, of words of several kinds, [N, kinds]; what became of each). It is added to the notes.

    Raises DataError: E403 for words of too many kinds, E405 for missing values.
    """
    inputs: dict[str, np.ndarray] = {}
    used: Kinds = {}
    for column in columns:
        one, parts = turned(sheet, column, sheet.columns[column])
        used[column] = one.kinds or []
        if not parts:
            text = f"column '{column}' holds {len(used[column]):,} different words, too many for an input"
            raise DataError("E403", f"{sheet.name}: {text}; leave it out of x.")
        inputs[column] = stacked(parts)[:, 0] if len(parts) == 1 else stacked(parts)
        if used[column]:
            notes.append(("note", f"input '{column}': words became 0 and 1 ({len(used[column])} kinds)"))
        if one.remark:
            notes.append(("note", one.remark))
        if one.unseen:
            unseen = excerpt(some(list(one.unseen)), 60)
            notes.append(("note", f"input '{column}' has {unseen} only in the test part"))
    return inputs, used


def inputs_as(sheet: Sheet, used: Kinds) -> dict[str, np.ndarray]:
    """The same of another table, its columns turned into numbers as `used` says. Raises DataError as `numbers_as` does."""
    values = {column: numbers_as(sheet, {column: kinds}) for column, kinds in used.items()}
    return {column: v[:, 0] if v.shape[1] == 1 else v for column, v in values.items()}
