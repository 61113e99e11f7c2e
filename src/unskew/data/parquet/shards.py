"""One Parquet file: its footer, which is checked before anything is read, and its row groups, read from their beginning on.

What its footer says of single columns is not asked: damaged footers end the process there (pyarrow
26), instead of raising an error. Letters: N rows.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unskew.data.intake import cells
from unskew.data.parquet.values import Column, column_of
from unskew.errors import DataError, excerpt

BUFFER = 1 << 20
"""Bytes of a column that are read at once; without it, pyarrow holds the whole column of a row group."""


@dataclass(frozen=True)
class Shard:
    """stamp: length and time of the last change of the file, in nanoseconds. groups: rows of each row group.

    columns: by name. size: bytes that all of them unpack to, as the footer says. classes: names of the classes of a column, as
    the hub writes them into the schema.
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
        """Raises DataError (E413) where the file is not what it was."""
        try:
            now = stamp_of(self.path)
        except DataError as error:
            raise self._altered("is gone" if not self.path.exists() else "can no longer be read") from error
        if now != self.stamp:
            raise self._altered("has changed since it was checked")

    def batches(self, group: int, names: Sequence[str], at_once: int) -> Iterator[Any]:
        """The rows of a row group in their order, some at a time, as Arrow has them; `column(name)` of each.

        at_once: rows of a batch at most. Raises DataError: E413 for a file that is not what it was, E401 for one that does
        not hold what its footer says.
        """
        file, rows = None, 0
        texts = [n for n in names if self.columns[n].kind == "text" and not self.columns[n].form.startswith("dict")]
        try:
            file = _parquet(self.path).ParquetFile(
                self.path,
                metadata=self.metadata,
                read_dictionary=texts,
                buffer_size=BUFFER,
                pre_buffer=False,
                page_checksum_verification=True,
            )
            for batch in file.iter_batches(at_once, row_groups=[group], columns=list(names), use_threads=False):
                rows += batch.num_rows
                yield batch
        except DataError:
            raise
        except Exception as error:  # pyarrow raises many kinds of error for damaged files
            self.check()
            raise _unreadable(self.path, error) from error
        finally:
            if file is not None:
                file.close()
        self.check()
        if rows != self.groups[group]:
            raise DataError(
                "E401",
                f"{self.path} holds {rows:,} rows in row group {group}, and its footer says {self.groups[group]:,}; write "
                "it again.",
            )

    def _altered(self, what: str) -> DataError:
        return DataError(
            "E413", f"{self.path} {what}; leave data alone while they are trained on, and start the run again."
        )


def shard(path: Path) -> Shard:
    """What the footer of a file says.

    Raises DataError (E401): without pyarrow, for a file without a whole footer, and for one whose footer contradicts itself.
    """
    parquet, stamp = _parquet(path), stamp_of(path)
    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            metadata, schema = file.metadata, file.schema_arrow
            fields = [column_of(one) for one in schema]
            groups = tuple(int(metadata.row_group(i).num_rows) for i in range(metadata.num_row_groups))
            size = sum(max(0, int(metadata.row_group(i).total_byte_size)) for i in range(metadata.num_row_groups))
            notes = schema.metadata or {}
    except DataError:
        raise
    except Exception as error:  # as above
        raise _unreadable(path, error) from error
    names = [cells.word(one.name) for one in fields]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError("E401", f"{path} has two columns called {excerpt(twice[0])}.")
    if min(groups, default=0) < 0 or sum(groups) != metadata.num_rows:
        text = f"declares {metadata.num_rows:,} rows, and its row groups {sum(groups):,}"
        raise DataError("E401", f"the footer of {path} {text}; write it again.")
    return Shard(path, stamp, groups, {one.name: one for one in fields}, size, classes_in(notes), metadata)


def stamp_of(path: Path) -> tuple[int, int]:
    """Length and time of the last change of a file. Raises DataError (E401) for one that cannot be looked at."""
    try:
        now = path.stat()
    except OSError as error:
        raise DataError("E401", f"{path} cannot be read: {error.strerror}.") from error
    return now.st_size, now.st_mtime_ns


def _parquet(path: Path) -> Any:
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise DataError(
            "E401", f"reading {path} needs pyarrow; pip install 'unskew[tables]', or save the table as CSV."
        ) from None


def _unreadable(path: Path, error: Exception) -> DataError:
    why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return DataError("E401", f"{path} cannot be read as Parquet: {excerpt(why, 200)[1:-1]}.")


def classes_in(notes: dict[bytes, bytes]) -> dict[str, tuple[str, ...]]:
    """The names of classes in the notes of a schema, by column; {} where there are none that can be read."""
    try:
        features = json.loads(notes[b"huggingface"])["info"]["features"].items()
        named = {str(column): one.get("names") for column, one in features if isinstance(one, dict)}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return {}
    return {
        column: tuple(names)
        for column, names in named.items()
        if isinstance(names, list) and names and all(isinstance(name, str) for name in names)
    }
