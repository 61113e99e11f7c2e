"""One Parquet file: its footer, its row groups, and the values of its columns as NumPy arrays.

The footer is checked before anything is read, and row groups are read from their beginning on. Column
statistics are not used: pyarrow 26 crashes on damaged ones instead of raising an error. The kind of a column
follows from its Arrow type:

    number   int64, float, bool ...                    text    string, also as a dictionary
    list     numbers in lists of one shape, nested     packed  struct<bytes: binary, ...>, a file in each row
    value    dates, decimals and the like              other   anything else, which is left out

Letters: N rows.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from unskew.data.files import cells
from unskew.data.storage.sample_rows import changed_error, file_stamp
from unskew.errors import DataError, excerpt

NUMBER_TYPES = frozenset(
    (
        "bool",
        "halffloat",
        "float",
        "double",
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    )
)
TEXT_TYPES = frozenset(("string", "large_string", "string_view"))
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


@dataclass(frozen=True)
class Shard:
    """One file of a table.

    stamp: size of the file and time of its last change, in nanoseconds. groups: number of rows of each row
    group. columns: by name. size: unpacked size in bytes, from the footer. classes: class names of columns,
    as the hub writes them into the schema.
    """

    path: Path
    stamp: tuple[int, int]
    groups: tuple[int, ...]
    columns: dict[str, Column]
    size: int
    classes: dict[str, tuple[str, ...]]
    metadata: Any = field(repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "metadata": None}

    def check(self) -> None:
        """Raises DataError (E413) if the file has changed."""
        try:
            stamp = file_stamp(self.path)
        except DataError as error:
            raise changed_error(
                self.path, "is gone" if not self.path.exists() else "can no longer be read"
            ) from error
        if stamp != self.stamp:
            raise changed_error(self.path, "has changed since it was checked")

    def batches(self, group: int, names: Sequence[str], at_once: int) -> Iterator[Any]:
        """The rows of a row group in order, in Arrow batches; `column(name)` returns a column of one.

        at_once: maximal number of rows of a batch. Raises DataError: E413 if the file has changed, E401 if it
        contradicts its footer.
        """
        file, rows = None, 0
        texts = [
            n for n in names if self.columns[n].kind == "text" and not self.columns[n].form.startswith("dict")
        ]
        try:
            file = _pyarrow_parquet(self.path).ParquetFile(
                self.path,
                metadata=self.metadata,
                read_dictionary=texts,
                buffer_size=READ_BUFFER,
                pre_buffer=False,
                page_checksum_verification=True,
            )
            for batch in file.iter_batches(
                at_once, row_groups=[group], columns=list(names), use_threads=False
            ):
                rows += batch.num_rows
                yield batch
        except DataError:
            raise
        except Exception as error:  # pyarrow raises many kinds of error for damaged files
            self.check()
            raise _parquet_error(self.path, error) from error
        finally:
            if file is not None:
                file.close()
        self.check()
        if rows != self.groups[group]:
            raise DataError(
                "E401",
                f"{self.path} holds {rows:,} rows in row group {group}, and its footer says"
                f" {self.groups[group]:,}; write it again.",
            )


def read_shard(path: Path) -> Shard:
    """The shard that a file's footer describes.

    Raises DataError (E401): without pyarrow, for a file without a whole footer, and for a footer that
    contradicts itself.
    """
    parquet, stamp = _pyarrow_parquet(path), file_stamp(path)
    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            metadata, schema = file.metadata, file.schema_arrow
            fields = [column_of(one) for one in schema]
            groups = tuple(int(metadata.row_group(i).num_rows) for i in range(metadata.num_row_groups))
            size = sum(
                max(0, int(metadata.row_group(i).total_byte_size)) for i in range(metadata.num_row_groups)
            )
            notes = schema.metadata or {}
    except DataError:
        raise
    except Exception as error:  # as above
        raise _parquet_error(path, error) from error
    names = [cells.word(one.name) for one in fields]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError("E401", f"{path} has two columns called {excerpt(twice[0])}.")
    if min(groups, default=0) < 0 or sum(groups) != metadata.num_rows:
        text = f"declares {metadata.num_rows:,} rows, and its row groups {sum(groups):,}"
        raise DataError("E401", f"the footer of {path} {text}; write it again.")
    return Shard(path, stamp, groups, {one.name: one for one in fields}, size, class_names(notes), metadata)


def _pyarrow_parquet(path: Path) -> Any:
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise DataError(
            "E401", f"reading {path} needs pyarrow; pip install 'unskew[tables]', or save the table as CSV."
        ) from None


def _parquet_error(path: Path, error: Exception) -> DataError:
    reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return DataError("E401", f"{path} cannot be read as Parquet: {excerpt(reason, 200)[1:-1]}.")


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
