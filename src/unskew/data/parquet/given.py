"""Columns of Parquet as arrays [N, ...] as they were given, before any scaling.

Letters: N rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from unskew.data.intake import cells
from unskew.data.intake.room import fits, size
from unskew.data.intake.targets import column_named
from unskew.data.packed import check_room
from unskew.data.parquet.forms import Layout, Listed
from unskew.data.parquet.groups import RowGroups
from unskew.data.parquet.several import Shards
from unskew.errors import DataError, excerpt


def lists(table: Shards, column: str, layout: Layout) -> np.ndarray:
    """A column of lists, in the type that they have in the file, with their channels first.

    Raises DataError: E414 for more than memory holds, E403 for lists of unequal length.
    """
    form = Listed(table, column, layout)
    if not fits(len(table), form.shape):
        text = f"column '{column}' would take {size(len(table), form.shape) / 2**30:,.1f} GiB of memory"
        raise DataError("E414", f"{table.name}: {text}; give fewer rows at once.")
    return np.concatenate([form.turned(held) for _, held in RowGroups(table, form).passed()])


def inputs(table: Shards, names: Sequence[str], layout: Layout) -> Mapping[str, np.ndarray]:
    """Several inputs, each a column of lists or of numbers, by their names.

    Raises DataError: E403 for a column that is missing or holds neither, and for more than memory holds, E405 for missing
    numbers.
    """
    columns = [column_named(dict.fromkeys(table.columns), name, table.name) for name in names]
    shapes = list[tuple[int, ...]]()
    for column in columns:
        kind, form = table.columns[column].kind, excerpt(table.columns[column].form, 40)[1:-1]
        if kind not in ("list", "number"):
            text = f"column '{column}' is of {form}, and an input is a column of numbers or of lists of numbers"
            raise DataError("E403", f"{table.name}: {text}; leave it out of x.")
        shapes.append(Listed(table, column, layout).shape if kind == "list" else ())
    check_room(table.name, len(table), sum(map(math.prod, shapes)))
    return {c: lists(table, c, layout) if table.columns[c].kind == "list" else _numbers(table, c) for c in columns}


def _numbers(table: Shards, column: str) -> np.ndarray:
    """A column of numbers. Raises DataError (E405) where one is missing."""
    values = table.whole(column)
    if (missing := cells.missing(values)).any():
        where = table.where(int(np.argmax(missing)))
        raise DataError(
            "E405", f"{table.name}: column '{column}' has no value in {where}; fill it or leave the row out."
        )
    return values
