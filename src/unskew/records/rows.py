"""Append-only JSON rows: in a file whose digest a checkpoint records, or compressed in memory.

Neither stores rows as Python objects, so a long run needs little memory. `Tail` reads the rows of a file that
another process is writing.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from unskew.records import schema
from unskew.system import disk

Row = dict[str, Any]
Mark = tuple[int, str]
"""(n, the SHA-256 of the first n bytes of a file)."""
BLOCK = 1 << 20


def scope_row(t: int, scope: str, metric: str, value: float) -> Row:
    """A row of metrics.jsonl without a client."""
    return {"t": t, "scope": scope, "client": None, "metric": metric, "value": value}


class FileLines:
    """Rows in a .jsonl file. mark: of the part of an existing file to keep; by default none is kept."""

    def __init__(self, path: Path, mark: Mark | None = None):
        self.path = path
        size = mark[0] if mark else 0
        self._sha = _sha_of(path, size)
        self._file = disk.AppendFile(path, size)

    def add(self, rows: Iterable[Row]) -> None:
        """Raises Paused (E203) when the disk is full; then none of the rows is added."""
        if text := _json_lines(rows).encode():
            self._file.add(text)
            self._sha.update(text)

    def read(self, start: int = 0) -> Iterator[Row]:
        """The rows in their order, without the first `start` of them."""
        with open(self.path, "rb") as file:
            for number, line in enumerate(file):
                if number >= start:
                    yield schema.parse_row(self.path, number + 1, line)

    def mark(self) -> Mark:
        """The mark of all rows so far. A checkpoint may hold it once `sync` has returned."""
        return self._file.size, self._sha.hexdigest()

    def sync(self) -> None:
        """Wait until all rows are on the disk. Raises Paused (E203) if it is full."""
        self._file.sync()

    def close(self) -> None:
        self._file.close()


class MemoryLines:
    """Rows of a run without a folder, as compressed JSON lines."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def add(self, rows: Iterable[Row]) -> None:
        if text := _json_lines(rows):
            self._pieces.append(zlib.compress(text.encode(), 1))

    def read(self, start: int = 0) -> Iterator[Row]:
        lines = chain.from_iterable(zlib.decompress(piece).splitlines() for piece in self._pieces)
        return map(json.loads, islice(lines, start, None))

    def close(self) -> None:
        """Nothing to do; the rows stay readable."""


def mark_of(path: Path) -> Mark:
    """The mark of a whole file."""
    size = path.stat().st_size
    return size, _sha_of(path, size).hexdigest()


def has_mark(path: Path, mark: Mark) -> bool:
    """Whether a file begins with the bytes of this mark."""
    size, digest = mark
    return path.is_file() and path.stat().st_size >= size and _sha_of(path, size).hexdigest() == digest


def _sha_of(path: Path, size: int) -> Any:
    """A SHA-256 object of the first bytes of a file, which can be updated with more."""
    sha = hashlib.sha256()
    if size:
        with open(path, "rb") as file:
            while size and (block := file.read(min(size, BLOCK))):
                sha.update(block)
                size -= len(block)
    return sha


_ENCODER = json.JSONEncoder(separators=(",", ":"))


def _json_lines(rows: Iterable[Row]) -> str:
    return "".join(_ENCODER.encode(row) + "\n" for row in rows)


class Tail:
    """Reads the new complete lines of a file that another process extends, and truncates when a run is
    resumed."""

    def __init__(self, path: Path):
        self._path, self._position = path, 0
        self._number = 0  # the number of lines read so far

    def read(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        self._position = min(self._position, self._path.stat().st_size)
        with open(self._path, "rb") as file:
            file.seek(self._position)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._position += len(line)
                self._number += 1
                yield schema.parse_row(self._path, self._number, line)
