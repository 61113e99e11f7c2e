"""One file of a set that Hugging Face Datasets has saved: an Arrow stream, of which batches of rows are read by their place.

Of a batch only the bytes of the columns that are needed are read. Nothing is mapped into memory, so that a file that is cut off
while it is used is an error and not the end of the process. Letters: N rows.
"""

from __future__ import annotations

import importlib
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unskew.data.intake.room import SHARE
from unskew.data.parquet.frames import Damaged, Frame, buffers_of, frames
from unskew.data.parquet.shards import Shard, classes_in, stamp_of
from unskew.data.parquet.values import column_of
from unskew.errors import DataError, excerpt
from unskew.ram import memory


@dataclass(frozen=True)
class Stream(Shard):
    """frames: where each batch of rows lies. schema: of the stream, as bytes of its message. places: of the columns, by name."""

    frames: tuple[Frame, ...]
    schema: bytes
    places: dict[str, int]

    def batches(self, group: int, names: Sequence[str], at_once: int) -> Iterator[Any]:
        """As those of a Shard; what must be read for them is in memory at once."""
        ipc, one = _ipc(self.path), self.frames[group]
        try:
            schema = ipc.read_schema(_buffer(self.schema))
            columns = list(buffers_of(schema.types))
            needed = [one.buffers[i] for name in names for i in columns[self.places[name]]]
            self._check_room(group, sum(count for _, count in needed))
            batch = ipc.read_record_batch(ipc.read_message(self._part(one, needed)), schema)
            arrays = [batch.column(self.places[name]) for name in names]
            for array in arrays:
                array.validate(full=True)
            arrays = [getattr(array, "storage", array) for array in arrays]
            chosen = importlib.import_module("pyarrow").RecordBatch.from_arrays(arrays, list(names))
        except DataError:
            raise
        except Damaged as error:
            raise DataError("E401", f"{self.path} {error}.") from error
        except Exception as error:  # pyarrow raises many kinds of error for damaged files
            self.check()
            raise unreadable(self.path, error) from error
        if chosen.num_rows != one.rows:
            text = f"holds {chosen.num_rows:,} rows in batch {group}, and announces {one.rows:,}; save it again"
            raise DataError("E401", f"{self.path} {text}.")
        for begin in range(0, one.rows, at_once):
            yield chosen.slice(begin, at_once)
        self.check()

    def _check_room(self, group: int, taken: int) -> None:
        if taken > SHARE * memory():
            text = f"batch {group} of {self.path} takes {taken:,} bytes, which must be in memory at once"
            raise DataError("E414", f"{text}; save the set with smaller batches (writer_batch_size in Datasets).")

    def _part(self, one: Frame, needed: Sequence[tuple[int, int]]) -> Any:
        """A message, all zeros but for its metadata and these buffers."""
        memory = mmap.mmap(-1, one.bytes)  # what is not written to takes no memory
        with open(self.path, "rb", buffering=0) as file, memoryview(memory) as whole:
            begin = one.body - one.at
            for where, count in ((0, begin), *((begin + where, count) for where, count in needed)):
                file.seek(one.at + where)
                done = 0
                while done < count:
                    with whole[where + done : where + count] as part:
                        got = file.readinto(part)
                    if not got:
                        self.check()
                        raise Damaged("is cut off")
                    done += got
        return importlib.import_module("pyarrow").py_buffer(memory)


def stream(path: Path) -> Stream:
    """What a file holds, by the descriptions before its rows.

    Raises DataError: E402 without the file, E401 without pyarrow, and for one that is cut off or that Datasets did not save.
    """
    ipc = _ipc(path)
    if not path.is_file():
        raise DataError("E402", f"{path} is missing, which state.json beside it lists; copy the whole folder.")
    stamp = stamp_of(path)
    try:
        with open(path, "rb") as file:
            content, listed = frames(file)
        schema = ipc.read_schema(_buffer(content))
        columns, fields = list(buffers_of(schema.types)), [column_of(one) for one in schema]
        notes = schema.metadata or {}
    except Damaged as error:
        raise DataError("E401", f"{path} {error}.") from error
    except Exception as error:  # as above
        raise unreadable(path, error) from error
    needs = columns[-1].stop if columns else 0
    if any(len(one.buffers) != needs for one in listed):
        raise DataError("E401", f"{path} is damaged: some rows have other columns than its schema says.")
    names = [one.name for one in fields]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError("E401", f"{path} has two columns called {excerpt(twice[0])}.")
    size = sum(one.bytes for one in listed)
    return Stream(
        path, stamp, tuple(one.rows for one in listed), {one.name: one for one in fields}, size, classes_in(notes), None,
        tuple(listed), content, {name: i for i, name in enumerate(names)},
    )  # fmt: skip


def unreadable(path: Path, error: Exception) -> DataError:
    """The one sentence on a file that is damaged."""
    why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return DataError("E401", f"{path} cannot be read as Arrow: {excerpt(why, 200)[1:-1]}.")


def _buffer(content: bytes) -> Any:
    return importlib.import_module("pyarrow").py_buffer(content)


def _ipc(path: Path) -> Any:
    try:
        return importlib.import_module("pyarrow.ipc")
    except ImportError:
        raise DataError("E401", f"reading {path} needs pyarrow; pip install 'unskew[tables]'.") from None
