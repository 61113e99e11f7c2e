"""The column of a table that says which part of a set each row belongs to: training, test or validation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from unskew.data.intake import cells
from unskew.data.intake.notes import Note, counted
from unskew.data.intake.tree import PARTS
from unskew.errors import DataError, excerpt

NAMES = ("split", "part", "subset", "partition")


def part_column(columns: Mapping[str, np.ndarray], taken: Iterable[str], name: str) -> tuple[str, np.ndarray | None]:
    """(the column, its words train, test and val, [N]), or ("", None): a column of such a name that holds none of these
    words is one like others.

    taken: columns with another purpose. name: of the table. Raises DataError (E403) for further words beside these.
    """
    for column in (c for c in columns if c.lower() in NAMES and c not in taken and columns[c].dtype.kind in "OUS"):
        words = cells.words(columns[column])
        kinds = {word: PARTS.get(word.strip().lower(), "") for word in set(words.tolist())}
        if not any(kinds.values()):
            continue
        if unknown := sorted(word for word, part in kinds.items() if not part):
            text = f"column '{column}' divides the rows, and holds {excerpt(unknown[0], 30)} beside train and test"
            raise DataError("E403", f"{name}: {text}; write train, test or val.")
        return column, np.array([kinds[word] for word in words.tolist()])
    return "", None


def left_out(validation: int) -> list[Note]:
    """The note on so many rows that are for validation."""
    return (
        [("left out", f"{counted(validation, 'row')} for validation: choose settings with validation=0.1")]
        if validation
        else []
    )
