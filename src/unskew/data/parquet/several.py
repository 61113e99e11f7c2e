"""Several Parquet files as one table: the rows of the first, then those of the second, and so on.

Letters: N rows of all files together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from unskew.data.intake import cells
from unskew.data.intake.room import SHARE
from unskew.data.parquet.places import parts_of
from unskew.data.parquet.shards import Shard, shard
from unskew.data.parquet.values import Column, values_of, widened
from unskew.errors import DataError, excerpt
from unskew.ram import memory

T = TypeVar("T")
BESIDE = 32
"""Bytes of memory that a row takes whatever it holds: its label, its checksum, its places in lists of rows."""
AT_ONCE = 1 << 12
"""Rows that are read at once where a whole column is."""
EXACT = 1 << 53
"""The largest whole number up to which float64 holds all of them."""
WHOLE = 0.5
"""Of what samples may take together, what the words of a single column may take that is in memory as a whole."""


@dataclass(frozen=True)
class Shards:
    """name: of the set. shards: at least one, the training rows first. trained: how many of them are training rows.

    more: columns that only some files have, and validation files, which are left out, in words.
    """

    name: str
    shards: tuple[Shard, ...]
    trained: int
    more: tuple[str, ...] = ()

    @cached_property
    def columns(self) -> dict[str, Column]:
        """By name, without spaces around it."""
        return {cells.word(name): column for name, column in self.shards[0].columns.items()}

    @cached_property
    def starts(self) -> np.ndarray:
        """The number of the first row of each file, and N behind them, int64 [files + 1]."""
        return np.cumsum([0, *(sum(one.groups) for one in self.shards)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def test(self) -> np.ndarray | None:
        """Which rows are test rows, bool [N]; None where the files do not say."""
        return np.arange(len(self)) >= self.trained if self.trained < len(self) else None

    def classes(self, column: str) -> tuple[str, ...] | None:
        """The names of the classes of a column, where its files give them."""
        name = self.columns[column].name
        return next((one.classes[name] for one in self.shards if name in one.classes), None)

    @property
    def row_bytes(self) -> int:
        """Bytes that a row unpacks to, about, as the footers say."""
        return max(1, sum(one.size for one in self.shards) // max(1, len(self)))

    def heavy(self, column: str) -> bool:
        """Whether words take more memory than a single column should that is in memory as a whole."""
        if self.columns[column].kind != "text" or sum(one.size for one in self.shards) <= _most():
            return False
        taken = 0
        for _, batch in self.batches([column]):
            taken += int(batch.nbytes)
            if taken > _most():
                return True
        return False

    def where(self, row: int) -> str:
        """`row 3 of part-1.parquet`, from 0."""
        number = int(np.searchsorted(self.starts, row, "right")) - 1
        return f"row {row - int(self.starts[number])} of {self.shards[number].path}"

    def batches(self, names: Sequence[str], at_once: int = AT_ONCE) -> Iterator[tuple[int, Any]]:
        """(number of the first row, some rows as Arrow has them), in their order, of these columns."""
        begin = 0
        raw = [self.columns[name].name for name in names]
        for one in self.shards:
            for group in range(len(one.groups)):
                for batch in one.batches(group, raw, at_once):
                    yield begin, batch
                    begin += batch.num_rows

    def converted(self, convert: Callable[[Any], T], array: Any, begin: int) -> T:
        """What `convert` makes of a part of a column. begin: the number of its first row.

        Raises DataError (E401) for bytes that are no values of the column's type, such as words that are not UTF-8.
        """
        try:
            return convert(array)
        except Exception as error:  # whatever pyarrow and NumPy raise on damaged values
            why = excerpt(" ".join(str(error).split()).rstrip("."), 200)[1:-1]
            text = f"the {len(array):,} rows from {self.where(begin)} on cannot be read as {array.type}"
            raise DataError("E401", f"{text}: {why}.") from error

    def whole(self, column: str) -> np.ndarray:
        """All values of a column, [N], numbers as int64 or float64. Raises DataError (E414) for words that take too much memory."""
        parts, taken, raw = list[np.ndarray](), 0, self.columns[column].name
        for begin, batch in self.batches([column]):
            taken += int(batch.nbytes)
            if taken > _most():
                raise DataError(
                    "E414",
                    f"{self.name}: column {excerpt(column, 40)} would have to be in memory as a whole, and takes more than "
                    f"{taken - int(batch.nbytes):,} bytes; leave it out, or write less into it.",
                )
            parts.append(widened(self.converted(values_of, batch.column(raw), begin)))
        _check_kept(self.name, column, parts)
        values = widened(np.concatenate(parts)) if parts else np.zeros(0)
        return _words(values) if self.columns[column].kind == "text" else values


class Columns(Mapping[str, np.ndarray]):
    """The columns of a table, each read when it is asked for; the last one is kept."""

    def __init__(self, table: Shards, names: Sequence[str]):
        self.table, self.names, self._last = table, list(names), ("", np.zeros(0))

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.names:
            raise KeyError(name)
        if self._last[0] != name:
            self._last = (name, self.table.whole(name))
        return self._last[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


class Named(Sequence[str]):
    """Where each row of a table stands, in words. begin: the row from which on they are counted."""

    def __init__(self, table: Shards, begin: int = 0):
        self.table, self.begin = table, begin

    def __getitem__(self, row: Any) -> Any:
        if not 0 <= row < len(self):
            raise IndexError(row)
        return self.table.where(self.begin + int(row))

    def __len__(self) -> int:
        return len(self.table) - self.begin


def shards_at(path: Path) -> Shards:
    """The table of the files at a path.

    Raises DataError: E402 without files, E401 for damaged ones, E403 for files whose columns differ, E414 for more rows than
    memory holds numbers for.
    """
    parts = parts_of(path)
    more = (f"{parts['val'][0].name}: choose settings with validation=0.1",) if "val" in parts else ()
    folders = sorted({name for file in parts["train"] for name in file.parts[:-1] if "=" in name})
    if folders:
        more += (f"what names of folders say, such as {folders[0]}: write it into a column",)
    known = {part: [shard(file) for file in files] for part, files in parts.items() if part != "val"}
    return table_of(path, known["train"], known.get("test", ()), more)


def table_of(path: Path, train: Sequence[Shard], test: Sequence[Shard], more: tuple[str, ...]) -> Shards:
    """Files at a path as one table. more: what is left out, in words. Raises DataError, E403 and E414, as `shards_at` does."""
    shards = (*train, *test)
    rows = sum(sum(one.groups) for one in shards)
    if rows * BESIDE > SHARE * memory():
        text = f"declares {rows:,} rows, whose labels alone do not fit into the {memory():,} bytes of memory"
        raise DataError("E414", f"{path} {text}; take fewer rows.")
    name = path.resolve().name if path.is_dir() else path.name.replace("*", "").strip("-_.") or "parquet"
    return Shards(name, shards, sum(sum(one.groups) for one in train), (*_unlike(shards), *more))


def _check_kept(name: str, column: str, parts: Sequence[np.ndarray]) -> None:
    """Raises DataError (E403) for whole numbers that are not kept beside fractions, which other files have in their place."""
    if len({part.dtype.kind for part in parts} & {*"iuf"}) < 2:
        return
    for part in parts:
        if part.dtype.kind in "iu" and len(part) and max(abs(int(part.min())), abs(int(part.max()))) > EXACT:
            text = f"column {excerpt(column, 40)} holds whole numbers beyond {EXACT:,} in some files, and numbers of another type in others"
            raise DataError("E403", f"{name}: {text}, which makes different ones equal; write one type into all files.")


def _most() -> float:
    """Bytes that the words of a column may take."""
    return WHOLE * SHARE * memory()


def _words(values: np.ndarray) -> np.ndarray:
    """Words as NumPy has them, each with the room of the longest; as objects where a word is missing, or where that is too much."""
    kinds = {type(value) for value in values}
    longest = max(map(len, values), default=0) if kinds == {str} else 0
    return values.astype(str) if kinds == {str} and 4 * longest * len(values) <= _most() else values


def _unlike(shards: Sequence[Shard]) -> tuple[str, ...]:
    """Columns that the first file does not have, in words. Raises DataError (E403) for a column that one lacks or has otherwise, also with classes numbered otherwise."""
    first, more = shards[0], list[str]()
    for one in shards[1:]:
        for name, column in first.columns.items():
            other = one.columns.get(name)
            if other is None:
                raise DataError("E403", f"{one.path} has no column {excerpt(name, 40)}, which {first.path} has.")
            if other.kind != column.kind or (column.kind == "list" and _inner(other) != _inner(column)):
                forms = f"{excerpt(column.form, 40)[1:-1]} in {first.path} and {excerpt(other.form, 40)[1:-1]} in {one.path}"
                raise DataError("E403", f"column {excerpt(name, 40)} is {forms}; write one type into all files.")
        for name, classes in one.classes.items():
            if classes != first.classes.get(name, classes):
                text = f"{first.path} and {one.path} number the classes of column {excerpt(name, 40)} differently"
                raise DataError("E403", f"{text}; write one list of names into all files, and the numbers that fit it.")
        if extra := [name for name in one.columns if name not in first.columns]:
            more.append(f"column {excerpt(extra[0], 40)}, which only {one.path.name} has")
    return tuple(dict.fromkeys(more))


def _inner(column: Column) -> str:
    """The type of the numbers in lists."""
    return column.form.replace("element: ", "").replace("item: ", "").replace("large_", "").replace("fixed_size_", "")
