"""One Parquet file or Arrow stream, and the values of its columns as NumPy arrays.

Column statistics are not used: pyarrow 26 crashes on damaged ones instead of raising an error. The kind of a
column follows from its Arrow type:

    number   int64, float, bool ...                    text    string, also as a dictionary
    list     numbers in lists of one shape, nested     packed  struct<bytes: binary, ...>, a file in each row
    value    dates, decimals and the like              other   anything else, which is left out

Letters: N rows.
"""

from __future__ import annotations

import importlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unskew.data.files import cells
from unskew.errors import DataError, excerpt

NUMBER_TYPES = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
NUMBER_TYPES |= {"bool", "halffloat", "float", "double"}
TEXT_TYPES = {"string", "large_string", "string_view"}
LIST_TYPE = re.compile(r"(?:large_)?list<[^:]+: (?P<inner>.*)>|fixed_size_list<[^:]+: (?P<fixed>.*)>\[\d+\]")
FILE_TYPE = re.compile(r"struct<(?:.*, )?bytes: (large_)?binary\b.*>")
VALUE_TYPES = re.compile(r"date|time|timestamp|decimal|null|duration|month")


@dataclass(frozen=True)
class Column:
    """kind: number, text, list, packed, value or other, see above. form: name of the Arrow type."""

    name: str
    kind: str
    form: str


def column_of(field: Any) -> Column:
    """The column of a field of a schema. An extension type counts as its storage type."""
    form = str(getattr(field.type, "storage_type", field.type))
    return Column(field.name, _kind_of(form), form)


def _kind_of(form: str) -> str:
    if form in NUMBER_TYPES:
        return "number"
    if form in TEXT_TYPES or form.startswith("dictionary<values=string,"):
        return "text"
    if FILE_TYPE.fullmatch(form):
        return "packed"
    inner = form
    while match := LIST_TYPE.fullmatch(inner):
        inner = (match["inner"] or match["fixed"]).removesuffix(" not null")
    if inner != form:
        return "list" if inner in NUMBER_TYPES else "other"
    return "value" if VALUE_TYPES.match(form) else "other"


def values_of(array: Any) -> np.ndarray:
    """A column's values, [N]: numbers keep their type; words, and columns with missing values, become
    objects."""
    form = str(array.type)
    if form.startswith("dictionary<"):
        return _dictionary_values(array)
    if form in NUMBER_TYPES and not array.null_count:
        return array.to_numpy(zero_copy_only=False)
    return _objects(array.to_pylist())


def widen(values: np.ndarray) -> np.ndarray:
    """Numbers as int64 if they are whole and fit, else as float64."""
    if values.dtype.kind == "f":
        return values.astype(np.float64, copy=False)
    if values.dtype.kind == "i" or (
        values.dtype.kind == "u" and (not len(values) or int(values.max()) < 1 << 63)
    ):
        return values.astype(np.int64, copy=False)
    return values


def lists_of(array: Any) -> np.ndarray | None:
    """Lists as one array [N, ...]; None if lists differ in length, or if a list or a number in one is
    missing."""
    shape: list[int] = [len(array)]
    while LIST_TYPE.fullmatch(str(array.type)):
        if array.null_count:
            return None
        inner = array.flatten()
        lengths = (
            array.value_lengths().to_numpy(zero_copy_only=False) if hasattr(array, "value_lengths") else None
        )
        size = len(inner) // len(array) if len(array) else 0
        if len(inner) != size * len(array) or (lengths is not None and (lengths != size).any()):
            return None
        shape.append(size)
        array = inner
    if array.null_count:
        return None
    return array.to_numpy(zero_copy_only=False).reshape(shape)


def files_of(array: Any) -> np.ndarray:
    """The content of each row's file, objects [N]: bytes, or None for a row without content."""
    return _objects(array.field("bytes").to_pylist())


def _objects(items: list[Any]) -> np.ndarray:
    values = np.empty(len(items), object)
    values[:] = items
    return values


def _dictionary_values(array: Any) -> np.ndarray:
    """The values of a dictionary array; equal values share one object."""
    words = _objects([*array.dictionary.to_pylist(), None])
    places = array.indices.fill_null(len(words) - 1).to_numpy(zero_copy_only=False)
    return words[places]


READ_BUFFER = 1 << 20
"""Number of bytes of a column that are read at once; otherwise pyarrow holds the whole column of a row
group."""


STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
"""The last bytes of a whole Arrow stream."""


@dataclass(frozen=True)
class Shard:
    """One Parquet file of a table.

    rows: number of rows. columns: by name. size: unpacked size in bytes. classes: class names of columns, as
    the hub writes them into the schema.
    """

    path: Path
    rows: int
    columns: dict[str, Column]
    size: int
    classes: dict[str, tuple[str, ...]]

    def batches(self, names: Sequence[str], at_once: int) -> Iterator[Any]:
        """The rows in order, in Arrow batches of at most `at_once` rows; `column(name)` returns a column of
        one. Raises DataError (E401) for a file that is damaged or has other rows than when it was opened."""
        rows = 0
        try:
            for batch in self._batches(names, at_once):
                rows += batch.num_rows
                yield batch
        except DataError:
            raise
        except Exception as error:  # pyarrow raises many kinds of error for damaged files
            raise _file_error(self.path, error) from error
        if rows != self.rows:
            text = f"holds {rows:,} rows, and {self.rows:,} when it was opened"
            raise DataError("E401", f"{self.path} {text}; write it again.")

    def _batches(self, names: Sequence[str], at_once: int) -> Iterator[Any]:
        with _pyarrow("pyarrow.parquet", self.path).ParquetFile(
            self.path,
            read_dictionary=[name for name in names if self.columns[name].kind == "text"],
            buffer_size=READ_BUFFER,
            pre_buffer=False,
            page_checksum_verification=True,
        ) as file:
            yield from file.iter_batches(at_once, columns=list(names), use_threads=False)


class StreamShard(Shard):
    """One file that holds an Arrow stream."""

    def _batches(self, names: Sequence[str], at_once: int) -> Iterator[Any]:
        for batch in _stream(self.path, [list(self.columns).index(name) for name in names]):
            batch.validate(full=True)
            columns = [getattr(column, "storage", column) for column in batch.select(list(names)).columns]
            plain = type(batch).from_arrays(columns, list(names))
            for begin in range(0, plain.num_rows, at_once):
                yield plain.slice(begin, at_once)


def _stream(path: Path, fields: Sequence[int]) -> Iterator[Any]:
    """The batches of an Arrow stream with the columns at these places."""
    ipc, pyarrow = _pyarrow("pyarrow.ipc", path), importlib.import_module("pyarrow")
    options = ipc.IpcReadOptions(included_fields=list(fields), use_threads=False)
    with pyarrow.memory_map(str(path)) as file, ipc.open_stream(file, options=options) as stream:
        yield from stream


def read_shard(path: Path) -> Shard:
    """The shard that the footer of a Parquet file describes. Raises DataError (E401): without pyarrow, and
    for a file without a whole footer."""
    parquet = _pyarrow("pyarrow.parquet", path)
    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            metadata, schema = file.metadata, file.schema_arrow
            size = sum(int(metadata.row_group(i).total_byte_size) for i in range(metadata.num_row_groups))
            facts = _facts(path, schema)
            return Shard(path, metadata.num_rows, facts[0], size, facts[1])
    except DataError:
        raise
    except Exception as error:  # as above
        raise _file_error(path, error) from error


def read_stream(path: Path) -> Shard:
    """The shard in an Arrow stream, whose rows are counted.

    Raises DataError: E402 for a missing file, E401 without pyarrow, and for a file that is truncated or
    damaged.
    """
    ipc = _pyarrow("pyarrow.ipc", path)
    if not path.is_file():
        raise DataError("E402", f"{path} is missing, which state.json lists; copy the whole folder.")
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 8))
            if file.read() != STREAM_END:
                raise DataError("E401", f"{path} is cut off or no Arrow stream; copy it again.")
            file.seek(0)
            columns, classes = _facts(path, ipc.open_stream(file).schema)
        rows = sum(batch.num_rows for batch in _stream(path, range(len(columns))))
    except DataError:
        raise
    except Exception as error:  # as above
        raise _file_error(path, error) from error
    return StreamShard(path, rows, columns, path.stat().st_size, classes)


def _facts(path: Path, schema: Any) -> tuple[dict[str, Column], dict[str, tuple[str, ...]]]:
    """(the columns of a schema, their class names). Raises DataError (E401) for two columns of one name."""
    names = [cells.word(one.name) for one in schema]
    if twice := sorted(name for name, times in Counter(names).items() if times > 1):
        raise DataError("E401", f"{path} has two columns called {excerpt(twice[0])}.")
    return {one.name: column_of(one) for one in schema}, class_names(schema.metadata or {})


def _pyarrow(module: str, path: Path) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        text = f"reading {path} needs pyarrow; pip install 'unskew[tables]', or save the table as CSV"
        raise DataError("E401", f"{text}.") from None


def _file_error(path: Path, error: Exception) -> DataError:
    reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return DataError("E401", f"{path} cannot be read by pyarrow: {excerpt(reason, 200)[1:-1]}.")


def class_names(notes: dict[bytes, bytes]) -> dict[str, tuple[str, ...]]:
    """The class names in a schema's metadata, by column; {} if there are none."""
    try:
        features = json.loads(notes[b"huggingface"])["info"]["features"].items()
        lists = {
            str(column): feature.get("names") for column, feature in features if isinstance(feature, dict)
        }
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return {}
    return {
        column: tuple(names)
        for column, names in lists.items()
        if isinstance(names, list) and names and all(isinstance(name, str) for name in names)
    }
