"""The bytes of a large message's tensors, which no process holds a second time.

On their way out they are views of the tensors. What has arrived lies in an unnamed file that nobody else can open, and
that is gone with its last reader, however this process ends.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Protocol

from unskew.disk import explaining_a_full_disk

SMALL = 1 << 22
"""Up to so many bytes travel with the text, and are held as they are."""
BLOCK = 1 << 20
"""Bytes that are read at a time."""


class Bulk(Protocol):
    """Bytes in an order, wherever they are."""

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int) -> bytes:
        """A copy of some of them."""
        ...


class Views:
    """Views of other objects' memory, one after the other; these must not change as long as somebody reads."""

    def __init__(self, views: Sequence[memoryview]):
        self._views = [view for view in views if len(view)]
        self._ends = list(accumulate(map(len, self._views)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, stop: int) -> bytes:
        parts: list[memoryview] = []
        place = bisect_right(self._ends, start)
        while start < min(stop, len(self)):
            view, begins = self._views[place], self._ends[place] - len(self._views[place])
            parts.append(view[start - begins : stop - begins])
            start, place = self._ends[place], place + 1
        return b"".join(parts)


class Stored:
    """A file without a name, which grows until it is whole. folder: on which disk."""

    def __init__(self, folder: Path):
        self._named = folder / "large message"  # in an error
        with explaining_a_full_disk(self._named, 0):
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def path(self) -> str:
        """A name under which this process, and only this one, can open the file again."""
        return f"/dev/fd/{self._file.fileno()}"

    def add(self, piece: bytes | memoryview) -> None:
        """Write at the end. Raises Paused (E203) when the disk is full, and then counts nothing of this piece."""
        written = 0
        with explaining_a_full_disk(self._named, len(piece)):
            while written < len(piece):  # one write may take only a part of it
                written += os.pwrite(self._file.fileno(), memoryview(piece)[written:], self._size + written)
        self._size += written

    def read(self, start: int, stop: int) -> bytes:
        return os.pread(self._file.fileno(), min(stop, self._size) - start, start)


def blocks(content: bytes | Bulk, size: int = BLOCK) -> Iterator[bytes]:
    """All of them, so many at a time."""
    for start in range(0, len(content), size):
        yield content[start : start + size] if isinstance(content, bytes) else content.read(start, start + size)


def whole(content: bytes | Bulk) -> bytes:
    """All of them at once."""
    return content if isinstance(content, bytes) else content.read(0, len(content))


def sha256(content: bytes | Bulk) -> str:
    """The digest in hexadecimal digits."""
    digest = hashlib.sha256()
    for block in blocks(content):
        digest.update(block)
    return digest.hexdigest()
