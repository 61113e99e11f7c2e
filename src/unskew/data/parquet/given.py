"""Columns of Parquet as arrays [N, ...] as they were given, before any scaling.

Letters: N rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from unskew.data.intake import cells
from unskew.data.intake.notes import Note, beneath
from unskew.data.intake.room import fits, size
from unskew.data.parquet.files import Turned, form_of, samples_in
from unskew.data.parquet.forms import Layout, Listed
from unskew.data.parquet.groups import RowGroups
from unskew.data.parquet.reading import samples_of
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


def inputs(
    table: Shards, columns: Sequence[str], layout: Layout, files: Mapping[str, Turned], notes: list[Note] | None = None
) -> dict[str, np.ndarray]:
    """Several inputs, each a column of lists, of numbers or of files, by the columns' names.

    files: what those of every column of files are turned into. notes: to which it is added what was done; inputs that memory
    does not hold together are then read when they are wanted, and refused where it is None.
    Raises DataError: E403 for a column that holds none of these, E405 for missing numbers, E401 for files that cannot be read,
    E414 for more than memory holds.
    """
    shapes = {column: _shape(table, column, layout, files) for column in columns}
    width = sum(map(math.prod, shapes.values()))
    in_memory = fits(len(table), (width,))
    if not in_memory and notes is None:
        text = f"its inputs would take {size(len(table), (width,)) / 2**30:,.1f} GiB of memory"
        raise DataError("E414", f"{table.name}: {text}; give fewer rows at once.")
    values = dict[str, np.ndarray]()
    for column in columns:
        remarks, kind = list[Note](), table.columns[column].kind
        if kind == "number":
            values[column] = _numbers(table, column)
        elif kind == "packed":
            values[column] = samples_in(table, column, files[column], remarks, in_memory)
        elif in_memory:
            values[column] = lists(table, column, layout)
        else:
            values[column] = samples_of(
                table, Listed(table, column, layout, as_they_are=True), remarks, in_memory=False
            )
        if notes is not None:
            notes += beneath(f"column '{column}'", remarks)
    return values


def _shape(table: Shards, column: str, layout: Layout, files: Mapping[str, Turned]) -> tuple[int, ...]:
    """Of an input in one sample. Raises DataError (E403) for a column that holds none."""
    kind, form = table.columns[column].kind, excerpt(table.columns[column].form, 40)[1:-1]
    if kind == "number":
        return ()
    if kind == "list":
        return Listed(table, column, layout).shape
    if kind == "packed" and column in files:
        return form_of(table, column, files[column]).shape
    if kind == "packed":
        text = f"column '{column}' holds files, and held numbers where the model was trained; give it as it was there"
        raise DataError("E403", f"{table.name}: {text}.")
    text = f"column '{column}' is of {form}, and an input is a column of numbers, of lists of numbers or of files"
    raise DataError("E403", f"{table.name}: {text}; leave it out of x.")


def _numbers(table: Shards, column: str) -> np.ndarray:
    """A column of numbers. Raises DataError (E405) where one is missing."""
    values = table.whole(column)
    if (missing := cells.missing(values)).any():
        where = table.where(int(np.argmax(missing)))
        raise DataError(
            "E405", f"{table.name}: column '{column}' has no value in {where}; fill it or leave the row out."
        )
    return values
