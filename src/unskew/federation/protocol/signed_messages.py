"""Signed messages as they travel, through Flower or through a local socket.

A message is a text, its signature and the bytes of its tensors. The code that carries it cannot read it. The
bytes of large tensors are never held in memory twice: outgoing bytes are views of the tensors, and incoming
bytes lie in an unnamed file that no other process can open and that disappears with its last reader.

This file imports neither torch nor Flower, because the process that holds a site's connection needs no torch.
"""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from pathlib import Path
from typing import Protocol

from unskew.errors import Paused
from unskew.system.disk import full_disk_as_paused

SMALL = 1 << 22
"""Up to so many bytes travel with the text, and are held as they are."""
BLOCK = 1 << 20
"""Bytes that are read at a time."""


class ByteSequence(Protocol):
    """Bytes in an order, wherever they are."""

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int) -> bytes:
        """A copy of some of them."""
        ...


class ByteViews:
    """Views of other objects' memory, one after the other; these must not change as long as somebody
    reads."""

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


class StoredBytes:
    """A file without a name, which grows until it is whole. folder: on which disk."""

    def __init__(self, folder: Path):
        self._named = folder / "large message"  # in an error
        with full_disk_as_paused(self._named, 0):
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def path(self) -> str:
        """A name under which this process, and only this one, can open the file again."""
        return f"/dev/fd/{self._file.fileno()}"

    def add(self, piece: bytes | memoryview) -> None:
        """Write at the end. Raises Paused (E203) when the disk is full, and then counts nothing of this
        piece."""
        written = 0
        with full_disk_as_paused(self._named, len(piece)):
            while written < len(piece):  # one write may take only a part of it
                written += os.pwrite(self._file.fileno(), memoryview(piece)[written:], self._size + written)
        self._size += written

    def read(self, start: int, stop: int) -> bytes:
        return os.pread(self._file.fileno(), min(stop, self._size) - start, start)


def blocks(content: bytes | ByteSequence, size: int = BLOCK) -> Iterator[bytes]:
    """All of them, so many at a time."""
    for start in range(0, len(content), size):
        yield (
            content[start : start + size] if isinstance(content, bytes) else content.read(start, start + size)
        )


def all_bytes(content: bytes | ByteSequence) -> bytes:
    """All of them at once."""
    return content if isinstance(content, bytes) else content.read(0, len(content))


def sha256(content: bytes | ByteSequence) -> str:
    """The digest in hexadecimal digits."""
    digest = hashlib.sha256()
    for block in blocks(content):
        digest.update(block)
    return digest.hexdigest()


SOCKET = "UNSKEW_SITE_SOCKET"
"""The environment variable that tells a site's worker where to listen."""
RETRY_S = 0.1
"""How often a worker that is not there yet is tried again."""
BUDGET = struct.Struct(">d")
"""How many seconds the worker may take; sent before each request."""
_LENGTHS = struct.Struct(">IIQ")
MOST_LENGTHS = (1 << 24, 1 << 12, 1 << 36)
"""The most bytes of text, signature and tensors that are read from a socket."""


class MessageNotStored(Paused):
    """A message that the disk has no room for. digest: of its text."""

    def __init__(self, digest: str, error: Paused):
        super().__init__(error.code, error.text)
        self.digest = digest


@dataclass(frozen=True)
class SignedMessage:
    """A text, its signature and the bytes of tensors; nothing is known about them until `unseal` has checked
    them."""

    text: str
    signature: bytes
    blob: bytes | ByteSequence

    @property
    def digest(self) -> str:
        """The SHA-256 of the text, which itself holds that of the blob."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return len(self.text.encode()) + len(self.signature) + len(self.blob)

    def send(self, line: socket.socket) -> None:
        text = self.text.encode()
        line.sendall(_LENGTHS.pack(len(text), len(self.signature), len(self.blob)))
        for piece in chain((text, self.signature), blocks(self.blob)):  # one at a time, as they may be many
            if piece:  # or the other side, which expects no more, may have closed already
                line.sendall(piece)

    @staticmethod
    def receive(line: socket.socket, folder: Path) -> SignedMessage:
        """folder: where the bytes of large tensors are kept.

        Raises ConnectionError if the other side closes early, or announces a message that is too large;
        MessageNotStored (E203) when the disk is full, after all of it was read, so that the other side can be
        told.
        """
        lengths = _LENGTHS.unpack(read_exactly(line, _LENGTHS.size))
        if any(length > most for length, most in zip(lengths, MOST_LENGTHS)):
            raise ConnectionError("the announced message is too large")
        text, signature = (read_exactly(line, length) for length in lengths[:2])
        without = SignedMessage(text.decode(), signature, b"")
        try:
            return replace(without, blob=_read_blob(line, lengths[2], folder))
        except Paused as error:
            raise MessageNotStored(without.digest, error) from error


def _read_blob(line: socket.socket, count: int, folder: Path) -> bytes | ByteSequence:
    if count <= SMALL:
        return read_exactly(line, count)
    stored, full, left = StoredBytes(folder), None, count
    while left:
        block = read_exactly(line, min(BLOCK, left))
        left -= len(block)
        try:
            if full is None:
                stored.add(block)
        except Paused as error:
            full = error
    if full is not None:
        raise full
    return stored


def read_exactly(line: socket.socket, count: int) -> bytes:
    """The next `count` bytes. Raises ConnectionError if the other side closes before."""
    received = bytearray()
    while len(received) < count:
        piece = line.recv(min(1 << 20, count - len(received)))
        if not piece:
            raise ConnectionError("the other side closed the connection in the middle of a message")
        received += piece
    return bytes(received)


def ask_worker(path: Path, folder: Path, request: SignedMessage, budget_s: float) -> SignedMessage:
    """The answer of the worker that listens there; one that is still loading its data is waited for.

    folder: where the bytes of large tensors are kept.

    Raises OSError if there is no answer within the budget, so that a site is never blocked for good.
    """
    until = time.monotonic() + budget_s
    with _connect(path, until) as line:
        left_s = max(0.1, until - time.monotonic())
        line.settimeout(left_s)
        line.sendall(BUDGET.pack(left_s))
        request.send(line)
        return SignedMessage.receive(line, folder)


def _connect(path: Path, until: float) -> socket.socket:
    while True:
        line = socket.socket(socket.AF_UNIX)
        try:
            line.connect(str(path))
            return line
        except (FileNotFoundError, ConnectionRefusedError):
            line.close()
            if time.monotonic() >= until:
                raise TimeoutError from None
            time.sleep(RETRY_S)


def share_name(path: str) -> str:
    """The name of what a tensor of an answer belongs to: "weights", "score/whose", or `part/leaf`."""
    first, *rest = path.split("/")
    if first in ("shares", "early"):
        return "/".join(rest[:2])
    return "weights" if first == "w" else path
