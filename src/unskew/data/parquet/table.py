"""Several Parquet files as one table: the rows of the first file, then those of the second, and so on.

x.parquet                         all rows
a folder with any *.parquet       all rows, the files in the order of their paths
train-*.parquet, test-*.parquet   training and test rows by the first word of the name, as on the hub
train/*.parquet, test/*.parquet   training and test rows by folder
shards/part-*.parquet             the files that the pattern matches

Letters: N rows of all files together.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from unskew.data.files import cells
from unskew.data.files.tree import IMAGE_ENDINGS, PART_NAMES, SOUND_ENDINGS, VOLUME_ENDINGS
from unskew.data.parquet.shard import Column, Shard, read_shard, values_of, widen
from unskew.data.storage.scratch import MEMORY_SHARE
from unskew.errors import DataError, excerpt
from unskew.system.machine import usable_memory

PARQUET_ENDING = ".parquet"
HIDDEN_PREFIXES = (".", "_")
"""The prefixes of hidden files, and of files that engines write next to their shards or are still writing."""
FIRST_WORD = re.compile(r"[A-Za-z]+")


def files_by_part(path: Path) -> dict[str, list[Path]]:
    """The files below a path by the use of their rows: "train", and maybe "test" and "val".

    Raises DataError: E402 if there are none, E403 if the use of some rows is unclear.
    """
    files = (
        [path] if path.is_file() else sorted(_files_below(path) if path.is_dir() else _matching_files(path))
    )
    if not files:
        raise DataError("E402", f"there is no {PARQUET_ENDING} file at {excerpt(str(path))[1:-1]}.")
    _check_duplicates(files)
    if path.is_file():
        return {"train": files}
    root = path if path.is_dir() else path.parent
    uses = {file: _part_of(file.relative_to(root)) for file in files}
    if not any(uses.values()):
        return {"train": files}
    if lacking := next((file for file, part in uses.items() if not part), None):
        example = next(file for file, part in uses.items() if part)
        text = f"{example} names what its rows are for, and {lacking} does not"
        raise DataError("E403", f"{text}; begin every name with train or test, or none.")
    _check_one_set(root, files)
    parts = {part: [file for file in files if uses[file] == part] for part in ("train", "test", "val")}
    if not parts["train"]:
        raise DataError("E403", f"{root} holds no training rows; begin the name of a file with train.")
    return {part: several for part, several in parts.items() if several}


def holds_parquet(path: Path) -> bool:
    """Whether a folder holds Parquet files, and neither images, sounds nor volumes."""
    has_parquet = False
    for _, _, names in os.walk(path):
        endings = {os.path.splitext(name)[1].lower() for name in names if not name.startswith(".")}
        if endings & (IMAGE_ENDINGS | SOUND_ENDINGS | VOLUME_ENDINGS):
            return False
        has_parquet = has_parquet or PARQUET_ENDING in endings
    return has_parquet


def is_pattern(text: str) -> bool:
    """Whether a text is a pattern that matches Parquet files, such as `shards/part-*.parquet`."""
    return (
        "*" in text and text.endswith(PARQUET_ENDING) and next(_matching_files(Path(text)), None) is not None
    )


def _files_below(folder: Path) -> Iterator[Path]:
    """The Parquet files of a folder, without hidden files and those with the prefix _, which engines write
    next to shards."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(HIDDEN_PREFIXES))
        yield from (
            Path(place, n)
            for n in names
            if n.lower().endswith(PARQUET_ENDING) and not n.startswith(HIDDEN_PREFIXES)
        )


def _matching_files(pattern: Path) -> Iterator[Path]:
    """The files of one folder that match a pattern; hidden files only if the pattern has their prefix."""
    hidden = () if pattern.name.startswith(HIDDEN_PREFIXES) else HIDDEN_PREFIXES
    return (
        file
        for file in pattern.parent.glob(pattern.name)
        if file.is_file() and not file.name.startswith(hidden)
    )


def _part_of(file: Path) -> str:
    """The use of a file's rows, by a folder of that name or by the first word of its name; "" if neither
    states it."""
    word = FIRST_WORD.match(file.name)
    names = [*file.parts[:-1], word[0] if word else ""]
    return next((PART_NAMES[name.lower()] for name in names if name.lower() in PART_NAMES), "")


def _check_duplicates(files: list[Path]) -> None:
    """Raises DataError (E403) for one file with two names, such as two snapshots of the hub's cache."""
    real: dict[str, Path] = {}
    for file in files:
        if (first := real.setdefault(os.path.realpath(file), file)) is not file:
            raise DataError("E403", f"{first} and {file} are one file; name the folder that holds each once.")


def _check_one_set(root: Path, files: list[Path]) -> None:
    """Raises DataError (E403) if each folder holds a whole set, as the configurations of a hub repository
    do."""
    whole = [f for f in files if not {*map(str.lower, f.relative_to(root).parts[:-1])} & {*PART_NAMES}]
    folders = sorted({str(file.parent) for file in whole})
    if len(folders) > 1:
        text = f"{root} holds several sets, {folders[0]} and {folders[1]}"
        raise DataError("E403", f"{text}; name one of these folders.")


T = TypeVar("T")
COLUMN_ROWS = 1 << 12
"""Number of rows that are read at once if a whole column is read."""
WORDS_SHARE = 0.5
"""The share of the samples' memory that the words of a single whole column may take."""


@dataclass(frozen=True)
class ShardTable:
    """Files as one table. name: name of the set. shards: at least one, the training rows first. train_rows:
    number of training rows.

    omissions: descriptions of what is left out: columns that only some files have, and validation files.
    """

    name: str
    shards: tuple[Shard, ...]
    train_rows: int
    omissions: tuple[str, ...] = ()

    @cached_property
    def columns(self) -> dict[str, Column]:
        """The columns by name, without surrounding spaces."""
        return {cells.word(name): column for name, column in self.shards[0].columns.items()}

    @cached_property
    def starts(self) -> np.ndarray:
        """The number of the first row of each file, and N at the end, int64 [files + 1]."""
        return np.cumsum([0, *(shard.rows for shard in self.shards)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def test(self) -> np.ndarray | None:
        """Which rows are test rows, bool [N]; None if the files have no test part."""
        return np.arange(len(self)) >= self.train_rows if self.train_rows < len(self) else None

    def classes(self, column: str) -> tuple[str, ...] | None:
        """The class names of a column, if its files have them."""
        name = self.columns[column].name
        return next((shard.classes[name] for shard in self.shards if name in shard.classes), None)

    def is_heavy(self, column: str) -> bool:
        """Whether the words of a column take too much memory for a whole column."""
        if self.columns[column].kind != "text" or sum(shard.size for shard in self.shards) <= _words_limit():
            return False
        size = 0
        for _, batch in self.batches([column]):
            size += int(batch.nbytes)
            if size > _words_limit():
                return True
        return False

    def where(self, row: int) -> str:
        """`row 3 of part-1.parquet`, from 0."""
        number = int(np.searchsorted(self.starts, row, "right")) - 1
        return f"row {row - int(self.starts[number])} of {self.shards[number].path}"

    def batches(self, names: Sequence[str], at_once: int = COLUMN_ROWS) -> Iterator[tuple[int, Any]]:
        """(number of the first row, an Arrow batch of rows) of these columns, in order."""
        begin = 0
        raw = [self.columns[name].name for name in names]
        for shard in self.shards:
            for batch in shard.batches(raw, at_once):
                yield begin, batch
                begin += batch.num_rows

    def convert_part(self, convert: Callable[[Any], T], array: Any, begin: int) -> T:
        """The result of `convert` for a part of a column. begin: number of its first row.

        Raises DataError (E401) for bytes that do not fit the column's type, such as words that are not UTF-8.
        """
        try:
            return convert(array)
        except Exception as error:  # pyarrow and NumPy raise many kinds of error for damaged values
            reason = excerpt(" ".join(str(error).split()).rstrip("."), 200)[1:-1]
            text = f"the {len(array):,} rows from {self.where(begin)} on cannot be read as {array.type}"
            raise DataError("E401", f"{text}: {reason}.") from error

    def whole_column(self, column: str) -> np.ndarray:
        """All values of a column, [N], numbers as int64 or float64. Raises DataError (E142) for words that
        take too much memory."""
        parts, size, raw = list[np.ndarray](), 0, self.columns[column].name
        for begin, batch in self.batches([column]):
            size += int(batch.nbytes)
            if size > _words_limit():
                text = f"column {excerpt(column, 40)} takes more than {_words_limit():,.0f} bytes of memory"
                raise DataError("E142", f"{self.name}: {text}; leave it out, or write less into it.")
            parts.append(widen(self.convert_part(values_of, batch.column(raw), begin)))
        values = widen(np.concatenate(parts)) if parts else np.zeros(0)
        return _word_array(values) if self.columns[column].kind == "text" else values


class LazyColumns(Mapping[str, np.ndarray]):
    """The columns of a table, each read when it is used; the last one is kept."""

    def __init__(self, table: ShardTable, names: Sequence[str]):
        self.table, self.names, self._last = table, list(names), ("", np.zeros(0))

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.names:
            raise KeyError(name)
        if self._last[0] != name:
            self._last = (name, self.table.whole_column(name))
        return self._last[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


class RowNames(Sequence[str]):
    """The place of each row of a table, in words. begin: the first row."""

    def __init__(self, table: ShardTable, begin: int = 0):
        self.table, self.begin = table, begin

    def __getitem__(self, row: Any) -> Any:
        if not 0 <= row < len(self):
            raise IndexError(row)
        return self.table.where(self.begin + int(row))

    def __len__(self) -> int:
        return len(self.table) - self.begin


def read_table(path: Path) -> ShardTable:
    """The table of the files at a path.

    Raises DataError: E402 without files, E401 for damaged ones, E403 for files with different columns.
    """
    parts = files_by_part(path)
    omissions = (f"{parts['val'][0].name}: choose settings with validation=0.1",) if "val" in parts else ()
    folders = sorted({name for file in parts["train"] for name in file.parts[:-1] if "=" in name})
    if folders:
        omissions += (f"what names of folders say, such as {folders[0]}: write it into a column",)
    shards = {part: [read_shard(file) for file in files] for part, files in parts.items() if part != "val"}
    return join_shards(path, shards["train"], shards.get("test", ()), omissions)


def join_shards(
    path: Path, train: Sequence[Shard], test: Sequence[Shard], omissions: tuple[str, ...]
) -> ShardTable:
    """Files at a path as one table. omissions: descriptions of what is left out.

    Raises DataError (E403) as `read_table` does.
    """
    shards = (*train, *test)
    name = path.resolve().name if path.is_dir() else path.name.replace("*", "").strip("-_.") or "parquet"
    return ShardTable(
        name, shards, sum(shard.rows for shard in train), (*_further_columns(shards), *omissions)
    )


def _words_limit() -> float:
    """Maximal size of the words of a column, in bytes."""
    return WORDS_SHARE * MEMORY_SHARE * usable_memory()


def _word_array(values: np.ndarray) -> np.ndarray:
    """Words as an array of the longest one's length; as objects if a word is missing, or if that takes too
    much memory."""
    kinds = {type(value) for value in values}
    longest = max(map(len, values), default=0) if kinds == {str} else 0
    return values.astype(str) if kinds == {str} and 4 * longest * len(values) <= _words_limit() else values


def _further_columns(shards: Sequence[Shard]) -> tuple[str, ...]:
    """Columns that the first file lacks, in words. Raises DataError (E403) for a column that a file lacks,
    or has with another type or other classes."""
    first, omissions = shards[0], list[str]()
    for shard in shards[1:]:
        for name, column in first.columns.items():
            match = shard.columns.get(name)
            if match is None:
                raise DataError(
                    "E403", f"{shard.path} has no column {excerpt(name, 40)}, which {first.path} has."
                )
            if match.kind != column.kind or (
                column.kind == "list" and _number_type(match) != _number_type(column)
            ):
                forms = [
                    f"{excerpt(c.form, 40)[1:-1]} in {s.path}" for c, s in ((column, first), (match, shard))
                ]
                text = f"column {excerpt(name, 40)} is {' and '.join(forms)}"
                raise DataError("E403", f"{text}; write one type into all files.")
        for name, classes in shard.classes.items():
            if classes != first.classes.get(name, classes):
                text = f"{first.path} and {shard.path} number the classes of column {excerpt(name, 40)}"
                raise DataError("E403", f"{text} differently; write one list of names into all files.")
        if extra := [name for name in shard.columns if name not in first.columns]:
            omissions.append(f"column {excerpt(extra[0], 40)}, which only {shard.path.name} has")
    return tuple(dict.fromkeys(omissions))


def _number_type(column: Column) -> str:
    """The type of the numbers in lists."""
    return re.sub("element: |item: |large_|fixed_size_", "", column.form)
