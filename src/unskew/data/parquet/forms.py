"""How rows of Parquet become samples: columns of a table as numbers, lists, or a file in each row.

Letters: N samples, n rows that are unpacked at once.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from unskew.data.convert import DEPTHS
from unskew.data.intake.features import Kinds, numbers_as
from unskew.data.intake.sheets import Sheet
from unskew.data.parquet.groups import AT_ONCE, Form
from unskew.data.parquet.several import Named, Shards
from unskew.data.parquet.values import lists_of, packed_of, values_of, widened
from unskew.errors import DataError

Layout = Literal["auto", "channels first", "channels last"]
FILES_AT_ONCE = 32
"""Files that are unpacked at once, at most: what each takes is known only then."""


class Tabular(Form):
    """The columns that are features, as the whole table turned each into numbers. used: see `numbers_as`."""

    at_once = AT_ONCE

    def __init__(self, table: Shards, used: Kinds):
        self.table, self.used, self.columns = table, used, tuple(used)
        width = sum(1 if len(kinds) in (0, 2) else len(kinds) for kinds in used.values())
        self.shape, self.row_bytes = (width,), 4 * width

    def unpacked(self, columns: dict[str, Any], begin: int) -> np.ndarray:
        values = {name: widened(self.table.converted(values_of, array, begin)) for name, array in columns.items()}
        return numbers_as(Sheet(self.table.name, values, Named(self.table, begin)), self.used)

    def samples(self, held: np.ndarray, rows: np.ndarray, begin: int) -> np.ndarray:
        return held[rows]


class Listed(Form):
    """A column of lists as samples. Whole numbers without a sign are scaled as those of arrays are (unskew.data.convert), unless
    they are taken as they are.

    Raises DataError (E403) where the first row holds no list of numbers.
    """

    at_once = AT_ONCE

    def __init__(self, table: Shards, column: str, layout: Layout, as_they_are: bool = False):
        self.table, self.columns, self.layout = table, (column,), layout
        first = next((batch for _, batch in table.batches([column], 1)), None)
        if first is None:
            raise DataError("E403", f"{table.name} has no rows.")
        values = table.converted(lists_of, first.column(table.columns[column].name), 0)
        if values is None or not values.size:
            raise DataError("E403", f"{table.name}: column '{column}' holds no numbers in {table.where(0)}.")
        self.inner, self.kind = values.shape[1:], values.dtype
        self.shape = self.turned(values).shape[1:]
        bits = DEPTHS.get(self.kind) if len(self.shape) > 1 and not as_they_are else None
        self.came = self.kind if as_they_are else Form.came
        self.full = (1 << bits) - 1 if bits else None
        self.row_bytes = values[0].nbytes

    def unpacked(self, columns: dict[str, Any], begin: int) -> np.ndarray:
        array = columns[self.columns[0]]
        values = self.table.converted(lists_of, array, begin)
        if values is None or values.shape[1:] != self.inner:
            row = next((i for i in range(len(array)) if self._differs(array, i)), 0)
            one = lists_of(array.slice(row, 1))
            what = "lacks a value" if one is None else f"is {list(one.shape[1:])}"
            raise DataError(
                "E403",
                f"{self.table.name}: column '{self.columns[0]}' is {list(self.inner)} in {self.table.where(0)} and {what} in "
                f"{self.table.where(begin + row)}; cut or pad lists to one shape.",
            )
        return values

    def _differs(self, array: Any, row: int) -> bool:
        values = lists_of(array.slice(row, 1))
        return values is None or values.shape[1:] != self.inner

    def samples(self, held: np.ndarray, rows: np.ndarray, begin: int) -> np.ndarray:
        with np.errstate(over="ignore"):  # infinity is refused where all samples are looked at
            x = self.turned(held[rows]).astype(np.float32)
        return x if self.full is None else x / np.float32(self.full)

    def turned(self, x: np.ndarray) -> np.ndarray:
        """Lists with their channels first."""
        if self.layout != "channels last" or x.ndim not in (3, 4):
            return x
        return x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)


Decode = Callable[[io.BytesIO, str], tuple[np.ndarray, Any]]
"""What makes a sample of the content of a file, and tells what else was seen of it. Raises DataError for what it cannot read."""


class Packed(Form):
    """A column with a file in each row. shape: of the sample that `decode` makes of one."""

    at_once = FILES_AT_ONCE

    def __init__(self, table: Shards, column: str, shape: tuple[int, ...], decode: Decode):
        self.table, self.columns, self.shape, self.decode = table, (column,), shape, decode
        self.row_bytes = table.row_bytes

    def unpacked(self, columns: dict[str, Any], begin: int) -> np.ndarray:
        return self.table.converted(packed_of, columns[self.columns[0]], begin)

    def samples(self, held: np.ndarray, rows: np.ndarray, begin: int) -> np.ndarray:
        x = np.empty((len(rows), *self.shape), np.float32)
        for place, row in enumerate(rows.tolist()):
            content: Any = held[row]
            x[place], _ = self.one(content, begin + row)
        return x

    def one(self, content: bytes | None, row: int) -> tuple[np.ndarray, Any]:
        """The sample in a file, and what else was seen of it. row: of the table. Raises DataError (E401) for one without."""
        where = self.table.where(row)
        if content is None:
            raise DataError("E401", f"{where} holds no file of its own in column '{self.columns[0]}'.")
        return self.decode(io.BytesIO(content), f"{where[0].upper()}{where[1:]}")
