"""The messages of an Arrow stream: where each lies in its file, and which bytes of it belong to which column.

A message is a mark, the length of its metadata, these (a flatbuffer), and a body of buffers, of which every column has some. Only
what is needed to read a part of a body is taken from the metadata, and nothing in them is believed without looking at it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

MARK = 0xFFFFFFFF
"""The bytes with which a message begins; one of length 0 is the end of the stream."""
SCHEMA, ROWS = 1, 3
"""Kinds of messages: the schema comes first, and then rows."""
LONGEST = 1 << 26
"""Bytes that the metadata of one message take at most."""
LAYOUTS = {"struct": 1, "fixed_size_list": 1, "list": 2, "large_list": 2, "binary": 3, "string": 3, "large_binary": 3,
           "large_string": 3, "null": 0}  # fmt: skip
"""How many buffers a type has of its own, by the first word of its name; one of numbers has two."""
OTHERS = ("dictionary", "sparse_union", "dense_union", "union", "run_end_encoded", "map", "list_view", "large_list_view", "string_view",
          "binary_view")  # fmt: skip
"""Types that are laid out in another way."""


class Damaged(ValueError):
    """What is wrong with a stream, in words that follow its name."""


@dataclass(frozen=True)
class Frame:
    """A message with rows. at: where it begins. body: where its body begins, bytes: of both. rows: how many it holds.

    buffers: (where in the body, how many bytes) of each buffer, in the order of the columns.
    """

    at: int
    body: int
    bytes: int
    rows: int
    buffers: tuple[tuple[int, int], ...]


def frames(file: BinaryIO) -> tuple[bytes, list[Frame]]:
    """(the message with the schema, the messages with rows) of a file. Raises Damaged."""
    end, schema, batches = os.fstat(file.fileno()).st_size, b"", list[Frame]()
    at = 0
    while True:
        head = _read(file, at, 8)
        mark, length = struct.unpack("<II", head)
        if mark != MARK:
            raise Damaged("is no Arrow stream" if not at else "holds something else where its next rows should begin")
        if not length:
            break
        if length > LONGEST or at + 8 + length > end:
            raise Damaged("is cut off or damaged: it does not hold what it announces")
        metadata = _read(file, at + 8, length)
        try:
            kind, size, rows, buffers = _message(metadata)
        except (struct.error, IndexError, OverflowError) as error:
            raise Damaged("is damaged: a description of its rows cannot be read") from error
        body = at + 8 + length
        if size < 0 or body + size > end:
            raise Damaged("is cut off or damaged: it does not hold what it announces")
        if kind != (ROWS if at else SCHEMA):
            what = "its words are listed apart (dictionaries)" if kind == 2 and at else "its schema does not come first"
            raise Damaged(f"is not as Datasets saves it: {what}")
        if kind == SCHEMA:
            schema = head + metadata
        else:
            if rows < 0 or any(where < 0 or count < 0 or where + count > size for where, count in buffers):
                raise Damaged("is damaged: it places values outside of itself")
            batches.append(Frame(at, body, 8 + length + size, rows, buffers))
        at = body + size
    if not schema:
        raise Damaged("is no Arrow stream")
    return schema, batches


def _read(file: BinaryIO, at: int, count: int) -> bytes:
    file.seek(at)
    content = file.read(count)
    if len(content) < count:
        raise Damaged("is cut off: the mark at its end is missing")
    return content


def _message(metadata: bytes) -> tuple[int, int, int, tuple[tuple[int, int], ...]]:
    """(kind, bytes of the body, rows, buffers) of a message."""
    root = _number("<I", metadata, 0)
    kind = _field("<B", metadata, root, 1)
    size = _field("<q", metadata, root, 3)
    if kind != ROWS:
        return kind, size, 0, ()
    batch = _pointed(metadata, root, 2)
    if _place(metadata, batch, 3):
        raise Damaged("holds compressed values, as Datasets saves none; save it again")
    listed = _pointed(metadata, batch, 2)
    count = _number("<I", metadata, listed)
    if count > len(metadata) // 16:
        raise Damaged("is damaged: a description of its rows cannot be read")
    numbers = struct.unpack_from(f"<{2 * count}q", metadata, listed + 4)
    return kind, size, _field("<q", metadata, batch, 0), tuple(zip(numbers[::2], numbers[1::2]))


def _number(form: str, content: bytes, at: int) -> int:
    if at < 0:
        raise IndexError(at)
    return int(struct.unpack_from(form, content, at)[0])


def _place(content: bytes, table: int, field: int) -> int:
    """Where a field of a table of a flatbuffer lies, 0 if it has none."""
    fields = table - _number("<i", content, table)
    held = (_number("<H", content, fields) - 4) // 2
    offset = _number("<H", content, fields + 4 + 2 * field) if field < held else 0
    return table + offset if offset else 0


def _field(form: str, content: bytes, table: int, field: int) -> int:
    """A number in a table, 0 where it is left out."""
    at = _place(content, table, field)
    return _number(form, content, at) if at else 0


def _pointed(content: bytes, table: int, field: int) -> int:
    """Where what a field points to begins."""
    at = _place(content, table, field)
    if not at:
        raise IndexError(field)
    return at + _number("<I", content, at)


def buffers_of(types: Sequence[Any]) -> Iterator[range]:
    """Which buffers each column has. types: of the columns, as Arrow has them, in order. Raises Damaged."""
    begin = 0
    for one in types:
        count = _count(one)
        yield range(begin, begin + count)
        begin += count


def _count(type: Any) -> int:
    type = getattr(type, "storage_type", type)
    word = str(type).partition("<")[0].partition("[")[0]
    if word in OTHERS:
        raise Damaged(f"holds a column of {word}, as Datasets saves none")
    return LAYOUTS.get(word, 2) + sum(_count(type.field(i).type) for i in range(type.num_fields))
