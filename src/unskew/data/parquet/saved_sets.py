"""Folders that Hugging Face Datasets has written with save_to_disk, read without that package.

dataset_dict.json, NAME/, NAME/   a DatasetDict: {"splits": [NAME, NAME]}
state.json                        a Dataset: {"_data_files": [{"filename": NAME}], ...}, the files in order
dataset_info.json                 next to it: {"features": {COLUMN: {"_type": ...}}}

Anyone may have written these files: names in them must be those of entries of the folder, or they are
refused.

Each file of such a set is an Arrow stream. A message of it is a mark, the length of its metadata, the
metadata (a flatbuffer), and a body of buffers, of which every column has some. Only the metadata that locate
the buffers of the needed columns are parsed, and all of them are checked. Nothing is mapped into memory, so a
file that is truncated while it is in use is an error and does not kill the process.
Letters: N rows.
"""

from __future__ import annotations

import importlib
import json
import mmap
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from unskew.data.files.tree import PART_NAMES
from unskew.data.parquet.shard import Shard, class_names, column_of
from unskew.data.parquet.table import ShardTable, join_shards
from unskew.data.samples.intake import abbreviate
from unskew.data.samples.memory_budget import MEMORY_SHARE
from unskew.data.storage.sample_rows import file_stamp
from unskew.errors import DataError, excerpt
from unskew.system.machine import usable_memory

MESSAGE_MARK = 0xFFFFFFFF
"""The first bytes of a message; a message of length 0 ends the stream."""
SCHEMA_KIND, BATCH_KIND = 1, 3
"""Kinds of messages: the schema comes first, and then rows."""
LARGEST_METADATA = 1 << 26
"""Maximal size of the metadata of one message, in bytes."""
BUFFER_COUNTS = {
    "struct": 1,
    "fixed_size_list": 1,
    "list": 2,
    "large_list": 2,
    "binary": 3,
    "string": 3,
    "large_binary": 3,
    "large_string": 3,
    "null": 0,
}
"""Number of buffers of a type, by the first word of its name; a type of numbers has two."""
UNREAD_TYPES = (
    "dictionary",
    "sparse_union",
    "dense_union",
    "union",
    "run_end_encoded",
    "map",
    "list_view",
    "large_list_view",
    "string_view",
    "binary_view",
)
"""Types with another layout."""


class StreamError(ValueError):
    """A fault of a stream, in words that follow its name."""


@dataclass(frozen=True)
class BatchMessage:
    """A message with rows. at: its position. body: the position of its body. bytes: size of both. rows:
    number of rows.

    buffers: (position in the body, size in bytes) of each buffer, in the order of the columns.
    """

    at: int
    body: int
    bytes: int
    rows: int
    buffers: tuple[tuple[int, int], ...]


def read_messages(file: BinaryIO) -> tuple[bytes, list[BatchMessage]]:
    """(the message with the schema, the messages with rows) of a file. Raises StreamError."""
    end, schema, batches = os.fstat(file.fileno()).st_size, b"", list[BatchMessage]()
    position = 0
    while True:
        head = _read_bytes(file, position, 8)
        mark, length = struct.unpack("<II", head)
        if mark != MESSAGE_MARK:
            raise StreamError(
                "is no Arrow stream"
                if not position
                else "holds something else where its next rows should begin"
            )
        if not length:
            break
        if length > LARGEST_METADATA or position + 8 + length > end:
            raise StreamError("is cut off or damaged: it does not hold what it announces")
        metadata = _read_bytes(file, position + 8, length)
        try:
            kind, size, rows, buffers = _parse_message(metadata)
        except (struct.error, IndexError, OverflowError) as error:
            raise StreamError("is damaged: a description of its rows cannot be read") from error
        body = position + 8 + length
        if size < 0 or body + size > end:
            raise StreamError("is cut off or damaged: it does not hold what it announces")
        if kind != (BATCH_KIND if position else SCHEMA_KIND):
            fault = (
                "its words are listed apart (dictionaries)"
                if kind == 2 and position
                else "its schema does not come first"
            )
            raise StreamError(f"is not as Datasets saves it: {fault}")
        if kind == SCHEMA_KIND:
            schema = head + metadata
        else:
            if rows < 0 or any(begin < 0 or count < 0 or begin + count > size for begin, count in buffers):
                raise StreamError("is damaged: it places values outside of itself")
            batches.append(BatchMessage(position, body, 8 + length + size, rows, buffers))
        position = body + size
    if not schema:
        raise StreamError("is no Arrow stream")
    return schema, batches


def _read_bytes(file: BinaryIO, position: int, count: int) -> bytes:
    file.seek(position)
    content = file.read(count)
    if len(content) < count:
        raise StreamError("is cut off: the mark at its end is missing")
    return content


def _parse_message(metadata: bytes) -> tuple[int, int, int, tuple[tuple[int, int], ...]]:
    """(kind, bytes of the body, rows, buffers) of a message."""
    root = _unpack_number("<I", metadata, 0)
    kind = _field_value("<B", metadata, root, 1)
    size = _field_value("<q", metadata, root, 3)
    if kind != BATCH_KIND:
        return kind, size, 0, ()
    batch = _field_target(metadata, root, 2)
    if _field_place(metadata, batch, 3):
        raise StreamError("holds compressed values, as Datasets saves none; save it again")
    vector = _field_target(metadata, batch, 2)
    count = _unpack_number("<I", metadata, vector)
    if count > len(metadata) // 16:
        raise StreamError("is damaged: a description of its rows cannot be read")
    numbers = struct.unpack_from(f"<{2 * count}q", metadata, vector + 4)
    return kind, size, _field_value("<q", metadata, batch, 0), tuple(zip(numbers[::2], numbers[1::2]))


def _unpack_number(form: str, content: bytes, position: int) -> int:
    if position < 0:
        raise IndexError(position)
    return int(struct.unpack_from(form, content, position)[0])


def _field_place(content: bytes, table: int, field: int) -> int:
    """The position of a field of a flatbuffer's table, 0 if it is absent."""
    fields = table - _unpack_number("<i", content, table)
    count = (_unpack_number("<H", content, fields) - 4) // 2
    offset = _unpack_number("<H", content, fields + 4 + 2 * field) if field < count else 0
    return table + offset if offset else 0


def _field_value(form: str, content: bytes, table: int, field: int) -> int:
    """A number in a table, 0 if it is absent."""
    place = _field_place(content, table, field)
    return _unpack_number(form, content, place) if place else 0


def _field_target(content: bytes, table: int, field: int) -> int:
    """The position to which a field points."""
    place = _field_place(content, table, field)
    if not place:
        raise IndexError(field)
    return place + _unpack_number("<I", content, place)


def buffers_of(types: Sequence[Any]) -> Iterator[range]:
    """The buffers of each column. types: Arrow types of the columns, in order. Raises StreamError."""
    begin = 0
    for kind in types:
        count = _buffer_count(kind)
        yield range(begin, begin + count)
        begin += count


def _buffer_count(type: Any) -> int:
    type = getattr(type, "storage_type", type)
    word = str(type).partition("<")[0].partition("[")[0]
    if word in UNREAD_TYPES:
        raise StreamError(f"holds a column of {word}, as Datasets saves none")
    return BUFFER_COUNTS.get(word, 2) + sum(_buffer_count(type.field(i).type) for i in range(type.num_fields))


@dataclass(frozen=True)
class ArrowShard(Shard):
    """A shard in an Arrow stream. frames: messages with the batches of rows. schema: bytes of the schema's
    message. places: positions of the columns, by name."""

    frames: tuple[BatchMessage, ...]
    schema: bytes
    places: dict[str, int]

    def batches(self, group: int, names: Sequence[str], at_once: int) -> Iterator[Any]:
        """The batches of rows, as `Shard.batches` returns them; the buffers of a batch are in memory at
        once."""
        ipc, message = _pyarrow_ipc(self.path), self.frames[group]
        try:
            schema = ipc.read_schema(_arrow_buffer(self.schema))
            columns = list(buffers_of(schema.types))
            buffers = [message.buffers[i] for name in names for i in columns[self.places[name]]]
            self._check_memory(group, sum(count for _, count in buffers))
            batch = ipc.read_record_batch(ipc.read_message(self._read_message(message, buffers)), schema)
            arrays = [batch.column(self.places[name]) for name in names]
            for array in arrays:
                array.validate(full=True)
            arrays = [getattr(array, "storage", array) for array in arrays]
            record = importlib.import_module("pyarrow").RecordBatch.from_arrays(arrays, list(names))
        except DataError:
            raise
        except StreamError as error:
            raise DataError("E401", f"{self.path} {error}.") from error
        except Exception as error:  # pyarrow raises many kinds of error for damaged files
            self.check()
            raise arrow_error(self.path, error) from error
        if record.num_rows != message.rows:
            text = (
                f"holds {record.num_rows:,} rows in batch {group}, and announces {message.rows:,}; save it"
                " again"
            )
            raise DataError("E401", f"{self.path} {text}.")
        for begin in range(0, message.rows, at_once):
            yield record.slice(begin, at_once)
        self.check()

    def _check_memory(self, group: int, size: int) -> None:
        if size > MEMORY_SHARE * usable_memory():
            text = f"batch {group} of {self.path} takes {size:,} bytes, which must be in memory at once"
            raise DataError(
                "E142", f"{text}; save the set with smaller batches (writer_batch_size in Datasets)."
            )

    def _read_message(self, message: BatchMessage, buffers: Sequence[tuple[int, int]]) -> Any:
        """A message that is zero except for its metadata and these buffers."""
        memory = mmap.mmap(-1, message.bytes)  # unwritten pages take no memory
        with open(self.path, "rb", buffering=0) as file, memoryview(memory) as target:
            begin = message.body - message.at
            for start, count in ((0, begin), *((begin + start, count) for start, count in buffers)):
                file.seek(message.at + start)
                position = 0
                while position < count:
                    with target[start + position : start + count] as part:
                        length = file.readinto(part)
                    if not length:
                        self.check()
                        raise StreamError("is cut off")
                    position += length
        return importlib.import_module("pyarrow").py_buffer(memory)


def read_stream(path: Path) -> ArrowShard:
    """The shard in a file, by the descriptions before its rows.

    Raises DataError: E402 for a missing file, E401 without pyarrow, and for a file that is truncated or that
    Datasets did not save.
    """
    ipc = _pyarrow_ipc(path)
    if not path.is_file():
        raise DataError(
            "E402", f"{path} is missing, which state.json beside it lists; copy the whole folder."
        )
    stamp = file_stamp(path)
    try:
        with open(path, "rb") as file:
            content, messages = read_messages(file)
        schema = ipc.read_schema(_arrow_buffer(content))
        columns, fields = list(buffers_of(schema.types)), [column_of(one) for one in schema]
        notes = schema.metadata or {}
    except StreamError as error:
        raise DataError("E401", f"{path} {error}.") from error
    except Exception as error:  # as above
        raise arrow_error(path, error) from error
    needs = columns[-1].stop if columns else 0
    if any(len(one.buffers) != needs for one in messages):
        raise DataError("E401", f"{path} is damaged: some rows have other columns than its schema says.")
    names = [one.name for one in fields]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError("E401", f"{path} has two columns called {excerpt(twice[0])}.")
    size = sum(one.bytes for one in messages)
    return ArrowShard(
        path,
        stamp,
        tuple(one.rows for one in messages),
        {one.name: one for one in fields},
        size,
        class_names(notes),
        None,
        tuple(messages),
        content,
        {name: i for i, name in enumerate(names)},
    )


def arrow_error(path: Path, error: Exception) -> DataError:
    """The error for a damaged file."""
    reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return DataError("E401", f"{path} cannot be read as Arrow: {excerpt(reason, 200)[1:-1]}.")


def _arrow_buffer(content: bytes) -> Any:
    return importlib.import_module("pyarrow").py_buffer(content)


def _pyarrow_ipc(path: Path) -> Any:
    try:
        return importlib.import_module("pyarrow.ipc")
    except ImportError:
        raise DataError("E401", f"reading {path} needs pyarrow; pip install 'unskew[tables]'.") from None


SPLITS_FILE, STATE_FILE, FACTS_FILE = "dataset_dict.json", "state.json", "dataset_info.json"
LARGEST_JSON = 1 << 24
"""Maximal size of a JSON file, in bytes."""
FEATURE_KINDS = frozenset(
    (
        "Value",
        "ClassLabel",
        "Image",
        "Audio",
        "List",
        "LargeList",
        "Sequence",
        "Array2D",
        "Array3D",
        "Array4D",
        "Array5D",
        "Translation",
        "TranslationVariableLanguages",
    )
)
"""Kinds of columns that need no conversion; a dictionary of several is a structure, which is left out."""


def is_saved_set(path: Path) -> bool:
    """Whether save_to_disk has written a folder."""
    if (path / SPLITS_FILE).is_file():
        return True
    if not (path / STATE_FILE).is_file():
        return False
    return (path / FACTS_FILE).is_file() or any(name.endswith(".arrow") for name in os.listdir(path))


def read_saved_table(path: Path, split: str) -> ShardTable:
    """The table in a folder. split: the part of a DatasetDict to train on, "" to choose by name.

    Raises DataError: E402 for a missing file, E401 for a damaged one, E403 for parts of which none can be
    chosen and for features that are not read, and the errors of `join_shards`.
    """
    if not (path / SPLITS_FILE).is_file():
        if split:
            raise DataError(
                "E403", f"{path} is one Dataset without splits; leave split={excerpt(split)[1:-1]} out."
            )
        return join_shards(path, _arrow_files(path), (), ())
    splits = _check_names(_read_json(path / SPLITS_FILE).get("splits"), path / SPLITS_FILE)
    train, test = _choose_splits(path, splits, split)
    unused = [name for name in splits if name not in (train, test)]
    omissions = tuple(f"split '{excerpt(name, 40)[1:-1]}'" for name in unused)
    return join_shards(path, _arrow_files(path / train), _arrow_files(path / test) if test else (), omissions)


def _choose_splits(path: Path, splits: list[str], split: str) -> tuple[str, str]:
    """(the split to train on, the split to test on, "" for none)."""
    if split and split not in splits:
        raise DataError("E403", f"{path} has no split {excerpt(split)}; it has {abbreviate(splits, 8)}.")
    if split or len(splits) == 1:
        return split or splits[0], ""
    parts = {
        part: [name for name in splits if PART_NAMES.get(name.lower()) == part] for part in ("train", "test")
    }
    if len(parts["train"]) != 1 or len(parts["test"]) > 1:
        text = f"{path} holds the splits {abbreviate(splits, 8)}, none or several of which are called train"
        raise DataError("E403", f"{text}: name the one to train on, such as split={splits[0]}.")
    return parts["train"][0], parts["test"][0] if parts["test"] else ""


def _arrow_files(folder: Path) -> list[Shard]:
    """The files of a Dataset, in their order."""
    state = _read_json(folder / STATE_FILE)
    if state.get("_indices_data_files"):
        raise DataError(
            "E403",
            f"{folder} was saved with an order of its rows apart (indices); save it again with a newer"
            " version of Datasets.",
        )
    _check_features(folder, _read_json(folder / FACTS_FILE).get("features"))
    entries = state.get("_data_files")
    files = (
        [entry.get("filename") if isinstance(entry, Mapping) else None for entry in entries]
        if isinstance(entries, list)
        else []
    )
    names = _check_names(files, folder / STATE_FILE)
    if len({*names}) < len(names):
        raise DataError("E401", f"{folder / STATE_FILE} lists a file twice; save the set again.")
    return [read_stream(folder / name) for name in names]


def _check_features(folder: Path, features: Any) -> None:
    """Raises DataError (E403) for a column of an unknown kind, such as videos."""
    if not isinstance(features, Mapping):
        raise DataError(
            "E401", f"{folder / FACTS_FILE} says nothing of the columns (features); save the set again."
        )
    for column, feature in features.items():
        kind = feature.get("_type") if isinstance(feature, Mapping) else None
        if isinstance(feature, Mapping) and "_type" in feature and kind not in FEATURE_KINDS:
            text = (
                f"column {excerpt(str(column), 40)} of {folder} is a feature {excerpt(str(kind), 40)}, which"
                " is not read"
            )
            raise DataError("E403", f"{text}; remove the column, and save the set again.")


def _check_names(entries: Any, source: Path) -> list[str]:
    """Names of entries of a folder. Raises DataError (E401) for anything else, such as a path that leads
    out of it."""
    names: list[Any] = entries if isinstance(entries, list) and entries else [None]
    for name in names:
        if (
            not isinstance(name, str)
            or name in ("", ".", "..")
            or {*"/\\\0"} & {*name}
            or Path(name).is_absolute()
        ):
            fault = (
                "lists nothing"
                if name is None
                else f"lists {excerpt(name, 60)}, which is no name in this folder"
            )
            raise DataError("E401", f"{source} {fault}; save the set again.")
        if (source.parent / name).is_symlink():
            raise DataError("E401", f"{source.parent / name} is a link; copy what it leads to.")
    return names


def _read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON file. Raises DataError: E402 for a missing file, E401 for a damaged one."""
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST_JSON + 1)
    except FileNotFoundError:
        raise DataError(
            "E402", f"{path} is missing, which save_to_disk writes; copy the whole folder."
        ) from None
    except OSError as error:
        raise DataError("E401", f"{path} cannot be read: {error.strerror}.") from error
    try:
        facts = json.loads(content) if len(content) <= LARGEST_JSON else None
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict):
        raise DataError("E401", f"{path} is damaged; save the set again.")
    return facts
