"""Parquet files as one table of all their rows.

x.parquet                         all rows
a folder with any *.parquet       all rows, the files in the order of their paths
train-*.parquet, test-*.parquet   training and test rows by the first word of the name, as on the hub
train/*.parquet, test/*.parquet   training and test rows by folder
shards/part-*.parquet             the files that the pattern matches

The kind of a column follows from its Arrow type. Column statistics are not used: pyarrow 26 crashes on
damaged ones instead of raising an error.

    number   int64, float, bool ...                    text    string, also as a dictionary
    list     numbers in lists of one shape, nested     packed  struct<bytes: binary, ...>, a file in each row
    value    dates, decimals and the like              other   anything else, which is left out

Letters: N rows of all files together.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from unskew.data.files import cells
from unskew.data.files.archives import check_unpacked
from unskew.data.files.folder_tree import PARQUET_ENDING, PART_NAMES
from unskew.data.files.sheets import ColumnSubset
from unskew.data.samples.conversion import damage_as_error
from unskew.data.storage.rows_on_disk import MEMORY_SHARE
from unskew.errors import DataError, excerpt
from unskew.system.machine import usable_memory

NUMBER_TYPES = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
NUMBER_TYPES |= {"bool", "halffloat", "float", "double"}
TEXT_TYPES = {"string", "large_string", "string_view"}
LIST_TYPE = re.compile(r"(?:large_)?list<[^:]+: (?P<inner>.*)>|fixed_size_list<[^:]+: (?P<fixed>.*)>\[\d+\]")
FILE_TYPE = re.compile(r"struct<(?:.*, )?bytes: (large_)?binary\b.*>")
VALUE_TYPES = re.compile(r"date|time|timestamp|decimal|null|duration|month")


@dataclass(frozen=True)
class Column:
    """name: as in the files. form: name of the Arrow type; of an extension type, its storage type."""

    name: str
    form: str

    @cached_property
    def numbers(self) -> str:
        """The type of what lists of lists hold; of other columns, their own."""
        form = self.form
        while match := LIST_TYPE.fullmatch(form):
            form = (match["inner"] or match["fixed"]).removesuffix(" not null")
        return form

    @cached_property
    def kind(self) -> str:
        """number, text, list, packed, value or other, see above."""
        if self.form in NUMBER_TYPES:
            return "number"
        if self.form in TEXT_TYPES or self.form.startswith("dictionary<values=string,"):
            return "text"
        if FILE_TYPE.fullmatch(self.form):
            return "packed"
        if self.numbers != self.form:
            return "list" if self.numbers in NUMBER_TYPES else "other"
        return "value" if VALUE_TYPES.match(self.form) else "other"


def values_of(array: Any) -> np.ndarray:
    """A column's values, [N]: whole numbers as int64 if they fit, others as float64; words, and columns with
    missing values, as objects."""
    form = str(array.type)
    if form.startswith("dictionary<"):  # equal words share one object
        words = _objects([*array.dictionary.to_pylist(), None])
        return words[array.indices.fill_null(len(words) - 1).to_numpy(zero_copy_only=False)]
    if form in NUMBER_TYPES and not array.null_count:
        return _widen(array.to_numpy(zero_copy_only=False))
    return _objects(array.to_pylist())


def _widen(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind == "f":
        return values.astype(np.float64, copy=False)
    fits = values.dtype.kind == "u" and (not len(values) or int(values.max()) < 1 << 63)
    return values.astype(np.int64, copy=False) if values.dtype.kind == "i" or fits else values


def lists_of(array: Any) -> np.ndarray | None:
    """Lists as one array [N, ...]; None if lists differ in length, or if a list or a number in one is
    missing."""
    shape: list[int] = [len(array)]
    while LIST_TYPE.fullmatch(str(array.type)):
        if array.null_count:
            return None
        inner = array.flatten()
        size = len(inner) // len(array) if len(array) else 0
        lengths = array.value_lengths().to_numpy(zero_copy_only=False)
        if len(inner) != size * len(array) or (lengths != size).any():
            return None
        shape.append(size)
        array = inner
    if array.null_count:
        return None
    return array.to_numpy(zero_copy_only=False).reshape(shape)


def files_of(array: Any) -> np.ndarray:
    """The content of each row's file, objects [N]: bytes, or None for a row without content."""
    return _objects(array.field("bytes").to_pylist())


def _paths_of(array: Any) -> list[str | None]:
    """The path of each row's file, None for a row without one."""
    return array.field("path").to_pylist()


def _objects(items: list[Any]) -> np.ndarray:
    values = np.empty(len(items), object)
    values[:] = items
    return values


REMEDY = "copy it again"
READ_BUFFER = 1 << 20
"""Number of bytes of a column that are read at once; otherwise pyarrow holds the whole column of a row
group."""


VALUES_AT_ONCE = 1 << 24
"""Values of a column that a batch holds, unless one row has more."""


@dataclass(frozen=True)
class Shard:
    """One Parquet file of a table.

    rows: number of rows. length: most values of a row in a column, above 1 for lists. columns: by name.
    classes: class names of columns, as the hub writes them into the schema.
    """

    path: Path
    rows: int
    length: int
    columns: dict[str, Column]
    classes: dict[str, tuple[str, ...]]

    def batches(self, names: Sequence[str], at_once: int) -> Iterator[Any]:
        """The rows in order, in Arrow batches of at most `at_once` rows, fewer of long lists; `column(name)`
        returns a column of one. Raises DataError (E401) for a file that is damaged or has other rows than
        when it was opened."""
        rows = 0
        with (
            damage_as_error(self.path, "Parquet", REMEDY),
            _pyarrow(self.path).ParquetFile(
                self.path,
                read_dictionary=[n for n in names if n in self.columns and self.columns[n].kind == "text"],
                buffer_size=READ_BUFFER,
                pre_buffer=False,
                page_checksum_verification=True,
            ) as file,
        ):
            few = max(1, min(at_once, VALUES_AT_ONCE // self.length))
            for batch in file.iter_batches(few, columns=list(names), use_threads=False):
                rows += batch.num_rows
                yield batch
        if rows != self.rows:
            text = f"holds {rows:,} rows, and {self.rows:,} when it was opened"
            raise DataError("E401", f"{self.path} {text}; write it again.")


VALUE_BYTES = 4
"""Bytes of a value once it is read: float32."""


def _read_shard(path: Path) -> Shard:
    """The shard that the footer of a Parquet file describes. Raises DataError (E401): without pyarrow, for a
    file without a whole footer, and for far more values than the file's size makes likely."""
    with damage_as_error(path, "Parquet", REMEDY), _pyarrow(path).ParquetFile(path, pre_buffer=False) as file:
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        sizes = [(g.column(j).num_values, g.num_rows) for g in groups for j in range(g.num_columns)]
        unpacked = max(VALUE_BYTES * sum(n for n, _ in sizes), sum(group.total_byte_size for group in groups))
        check_unpacked(unpacked, path, path.stat().st_size)
        length = max((math.ceil(n / max(1, rows)) for n, rows in sizes), default=1)
        return Shard(path, file.metadata.num_rows, max(1, length), *_schema_facts(path, file.schema_arrow))


def _schema_facts(path: Path, schema: Any) -> tuple[dict[str, Column], dict[str, tuple[str, ...]]]:
    """(the columns of a schema, the class names that the hub's metadata have). Raises DataError (E401) for
    two columns of one name."""
    names = [cells.word(one.name) for one in schema]
    if twice := sorted(name for name, times in Counter(names).items() if times > 1):
        raise DataError("E401", f"{path} has two columns called {excerpt(twice[0])}.")
    columns = {f.name: Column(f.name, str(getattr(f.type, "storage_type", f.type))) for f in schema}
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"].items()
        lists = {
            str(column): feature.get("names") for column, feature in features if isinstance(feature, dict)
        }
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return columns, {}
    return columns, {
        column: tuple(words)
        for column, words in lists.items()
        if isinstance(words, list) and words and all(isinstance(word, str) for word in words)
    }


def _pyarrow(path: Path) -> Any:
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError:
        text = f"reading {path} needs pyarrow; pip install 'unskew[tables]', or save the table as CSV"
        raise DataError("E401", f"{text}.") from None


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

    def where(self, row: int) -> str:
        """`row 3 of part-1.parquet`, from 0."""
        number = int(np.searchsorted(self.starts, row, "right")) - 1
        return f"row {row - int(self.starts[number])} of {self.shards[number].path}"

    def paths(self, packed: str) -> list[str]:
        """The path of the file of each row: in the column of files, if it has all of them, else that of the
        Parquet file, without its ending; [] if there is one file. packed: the column of files, "" without
        one."""
        if packed and "path: string" in self.columns[packed].form:
            name, paths, begin = self.columns[packed].name, list[str | None](), 0
            for shard in self.shards:
                for batch in shard.batches([f"{name}.path"], COLUMN_ROWS):
                    with damage_as_error(f"the rows from {self.where(begin)} on", "paths", REMEDY):
                        paths += _paths_of(batch.column(name))
                    begin += batch.num_rows
            if all(paths):
                return [str(path) for path in paths]
        if len(self.shards) < 2:
            return []
        root = os.path.commonpath([shard.path.parent for shard in self.shards])
        names = [shard.path.relative_to(root).with_suffix("").as_posix() for shard in self.shards]
        return [name for name, shard in zip(names, self.shards) for _ in range(shard.rows)]

    def parts(
        self, names: Sequence[str], convert: Callable[[Any], T], at_once: int = 0
    ) -> Iterator[tuple[int, dict[str, T]]]:
        """(number of the first row, the converted values of each of these columns) of consecutive rows, in
        order. convert: is called with Arrow arrays. at_once: most rows of a part, by default COLUMN_ROWS.

        Raises DataError (E401) for bytes that do not fit a column's type, such as words that are not UTF-8.
        """
        begin = 0
        raw = {name: self.columns[name].name for name in names}
        for shard in self.shards:
            for batch in shard.batches(list(raw.values()), at_once or COLUMN_ROWS):
                place = f"the {batch.num_rows:,} rows from {self.where(begin)} on"
                with damage_as_error(place, "what their columns' types say", REMEDY):
                    values = {name: convert(batch.column(column)) for name, column in raw.items()}
                yield begin, values
                begin += batch.num_rows

    def whole_column(self, column: str) -> np.ndarray:
        """All values of a column, [N]. Raises DataError (E142) for words that take too much memory."""
        parts, size, limit = list[np.ndarray](), 0, _words_limit()
        for _, part in self.parts([column], lambda array: (array.nbytes, values_of(array))):
            nbytes, values = part[column]
            size += int(nbytes)
            if size > limit:
                text = f"column {excerpt(column, 40)} takes more than {limit:,.0f} bytes of memory"
                raise DataError("E142", f"{self.name}: {text}; leave it out, or write less into it.")
            parts.append(values)
        values = _widen(np.concatenate(parts)) if parts else np.zeros(0)
        if self.columns[column].kind != "text" or {type(value) for value in values} != {str}:
            return values
        longest = max((len(str(value)) for value in values.tolist()), default=0)
        return values.astype(str) if 4 * longest * len(values) <= limit else values


class LazyColumns(ColumnSubset):
    """The columns of a table, each read when it is used; the last one is kept."""

    def __init__(self, table: ShardTable, names: Sequence[str]):
        super().__init__({}, names)
        self.table, self._last = table, ("", np.zeros(0))

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in list(self):
            raise KeyError(name)
        if self._last[0] != name:
            self._last = (name, self.table.whole_column(name))
        return self._last[1]


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


def _words_limit() -> float:
    """Maximal size of the words of a column, in bytes."""
    return WORDS_SHARE * MEMORY_SHARE * usable_memory()


HIDDEN_PREFIXES = (".", "_")
"""The prefixes of hidden files, and of files that engines write next to their shards or are still writing."""
FIRST_WORD = re.compile(r"[A-Za-z]+")


def read_table(path: Path) -> ShardTable:
    """The table of the files at a path.

    Raises DataError: E402 without files, E401 for damaged ones, E403 for files with different columns, and if
    the use of some rows is unclear.
    """
    parts = _files_by_part(path)
    omissions = [f"{parts['val'][0].name}: choose settings with validation=0.1"] if "val" in parts else []
    folders = sorted({name for file in parts["train"] for name in file.parts[:-1] if "=" in name})
    if folders:
        omissions.append(f"what names of folders say, such as {folders[0]}: write it into a column")
    shards = {part: [_read_shard(file) for file in files] for part, files in parts.items() if part != "val"}
    return _join_shards(path, shards["train"], shards.get("test", ()), omissions)


def parquet_files(path: Path) -> list[Path]:
    """The Parquet file, those of a folder, or those that a pattern matches, without hidden ones."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        hidden = () if path.name.startswith(HIDDEN_PREFIXES) else HIDDEN_PREFIXES
        matches = path.parent.glob(path.name)
        return sorted(file for file in matches if file.is_file() and not file.name.startswith(hidden))
    files: list[Path] = []
    for place, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith(HIDDEN_PREFIXES))
        shards = (
            n for n in names if n.lower().endswith(PARQUET_ENDING) and not n.startswith(HIDDEN_PREFIXES)
        )
        files += [Path(place, name) for name in shards]
    return sorted(files)


def _files_by_part(path: Path) -> dict[str, list[Path]]:
    """The files at a path by the use of their rows: "train", and maybe "test" and "val"."""
    files = parquet_files(path)
    if not files:
        raise DataError("E402", f"there is no {PARQUET_ENDING} file at {excerpt(str(path))[1:-1]}.")
    root = path if path.is_dir() else path.parent
    uses = {file: "" if path.is_file() else _part_of(file.relative_to(root)) for file in files}
    if not any(uses.values()):
        return {"train": files}
    if lacking := next((file for file, part in uses.items() if not part), None):
        example = next(file for file, part in uses.items() if part)
        text = f"{example} names what its rows are for, and {lacking} does not"
        raise DataError("E403", f"{text}; begin every name with train or test, or none.")
    whole = [f for f in files if not {*map(str.lower, f.relative_to(root).parts[:-1])} & {*PART_NAMES}]
    if len(folders := sorted({str(file.parent) for file in whole})) > 1:
        # as the configurations of a hub repository
        text = f"{root} holds several sets, {folders[0]} and {folders[1]}"
        raise DataError("E403", f"{text}; name one of these folders.")
    parts = {part: [file for file in files if uses[file] == part] for part in ("train", "test", "val")}
    if not parts["train"]:
        raise DataError("E403", f"{root} holds no training rows; begin the name of a file with train.")
    return {part: several for part, several in parts.items() if several}


def _part_of(file: Path) -> str:
    """The use of a file's rows, by a folder of that name or by the first word of its name; "" if neither
    states it."""
    word = FIRST_WORD.match(file.name)
    names = [*file.parts[:-1], word[0] if word else ""]
    return next((PART_NAMES[name.lower()] for name in names if name.lower() in PART_NAMES), "")


def _join_shards(
    path: Path, train: Sequence[Shard], test: Sequence[Shard], omissions: Sequence[str]
) -> ShardTable:
    """Files at a path as one table. omissions: descriptions of what is left out.

    Raises DataError (E403) for a column that a file lacks, or has with another type or other classes.
    """
    shards, further = (*train, *test), list[str]()
    first = shards[0]
    for shard in shards[1:]:
        for name, column in first.columns.items():
            match = shard.columns.get(name)
            if match is None:
                raise DataError(
                    "E403", f"{shard.path} has no column {excerpt(name, 40)}, which {first.path} has."
                )
            lists = column.kind == "list" and match.numbers != column.numbers
            if match.kind != column.kind or lists:
                one, other = (excerpt(c.form, 40)[1:-1] for c in (column, match))
                text = f"column {excerpt(name, 40)} is {one} in {first.path} and {other} in {shard.path}"
                raise DataError("E403", f"{text}; write one type into all files.")
        for name, classes in shard.classes.items():
            if classes != first.classes.get(name, classes):
                text = f"{first.path} and {shard.path} number the classes of column {excerpt(name, 40)}"
                raise DataError("E403", f"{text} differently; write one list of names into all files.")
        if extra := [name for name in shard.columns if name not in first.columns]:
            further.append(f"column {excerpt(extra[0], 40)}, which only {shard.path.name} has")
    name = path.resolve().name if path.is_dir() else path.name.replace("*", "").strip("-_.") or "parquet"
    rows = sum(shard.rows for shard in train)
    return ShardTable(name, shards, rows, (*dict.fromkeys(further), *omissions))
