"""Signed messages on their way through Flower or through a local socket.

A message is a text, its signature and the bytes of its tensors, opaque to the code that carries it. The
bytes of large tensors are never held in memory twice: outgoing bytes are views of the tensors, and incoming
bytes lie in an unnamed file that no other process can open and that disappears with its last reader.

This file imports neither torch nor Flower, because the process that holds a site's connection needs no
torch.
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
"""Up to this many bytes travel with the text and are held in memory."""
BLOCK = 1 << 20
"""Bytes read at a time."""


class ByteSequence(Protocol):
    """A sequence of bytes in memory or in a file."""

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int) -> bytes:
        """A copy of the bytes from start to stop."""
        ...


class ByteViews:
    """Concatenated views of other objects' memory, which must not change while they are read."""

    def __init__(self, views: Sequence[memoryview]):
        self._views = [view for view in views if len(view)]
        self._ends = list(accumulate(map(len, self._views)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, stop: int) -> bytes:
        """The bytes from `start` to `stop`, at most up to the end."""
        parts: list[memoryview] = []
        place = bisect_right(self._ends, start)
        while start < min(stop, len(self)):
            view, begins = self._views[place], self._ends[place] - len(self._views[place])
            parts.append(view[start - begins : stop - begins])
            start, place = self._ends[place], place + 1
        return b"".join(parts)


class StoredBytes:
    """An unnamed file that grows until it is complete. folder: a folder of the disk to use."""

    def __init__(self, folder: Path):
        self._shown_path = folder / "large message"  # appears in errors only
        with full_disk_as_paused(self._shown_path, 0):
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def path(self) -> str:
        """A name under which only this process can open the file again."""
        return f"/dev/fd/{self._file.fileno()}"

    def add(self, piece: bytes | memoryview) -> None:
        """Append a piece. Raises Paused (E203) if the disk is full; the piece is then not counted."""
        written = 0
        with full_disk_as_paused(self._shown_path, len(piece)):
            while written < len(piece):  # one write may take only a part of it
                written += os.pwrite(self._file.fileno(), memoryview(piece)[written:], self._size + written)
        self._size += written

    def read(self, start: int, stop: int) -> bytes:
        """The bytes from `start` to `stop`, at most up to the end."""
        return os.pread(self._file.fileno(), min(stop, self._size) - start, start)


def blocks(content: bytes | ByteSequence, size: int = BLOCK) -> Iterator[bytes]:
    """The content in blocks of `size` bytes."""
    for start in range(0, len(content), size):
        yield (
            content[start : start + size] if isinstance(content, bytes) else content.read(start, start + size)
        )


def all_bytes(content: bytes | ByteSequence) -> bytes:
    """The whole content in one object."""
    return content if isinstance(content, bytes) else content.read(0, len(content))


def sha256(content: bytes | ByteSequence) -> str:
    """The SHA-256 of the content as hexadecimal digits."""
    digest = hashlib.sha256()
    for block in blocks(content):
        digest.update(block)
    return digest.hexdigest()


SOCKET = "UNSKEW_SITE_SOCKET"
"""The environment variable with the path of a site's worker's socket."""
RETRY_S = 0.1
"""Seconds between attempts to reach a worker that is not there yet."""
BUDGET = struct.Struct(">d")
"""Seconds that the worker may take; sent before each request."""
_LENGTHS = struct.Struct(">IIQ")
MOST_LENGTHS = (1 << 24, 1 << 12, 1 << 36)
"""Most bytes of text, signature and tensors read from a socket."""


class MessageNotStored(Paused):
    """The disk has no room for a message. digest: SHA-256 of the message's text."""

    def __init__(self, digest: str, error: Paused):
        super().__init__(error.code, error.text)
        self.digest = digest


@dataclass(frozen=True)
class SignedMessage:
    """A text, its signature and the bytes of tensors; unverified until `unseal` has checked them."""

    text: str
    signature: bytes
    blob: bytes | ByteSequence

    @property
    def digest(self) -> str:
        """The SHA-256 of the text, which itself contains the SHA-256 of the tensors."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return len(self.text.encode()) + len(self.signature) + len(self.blob)

    def send(self, line: socket.socket) -> None:
        """Write the message to a socket: the three lengths, the text, the signature, the tensors."""
        text = self.text.encode()
        line.sendall(_LENGTHS.pack(len(text), len(self.signature), len(self.blob)))
        for piece in chain((text, self.signature), blocks(self.blob)):  # one at a time, as they may be many
            if piece:  # the other side may close after the last byte that it expects
                line.sendall(piece)

    @staticmethod
    def receive(line: socket.socket, folder: Path) -> SignedMessage:
        """Read a message from a socket. folder: where the bytes of large tensors are stored.

        Raises ConnectionError if the other side closes early or announces a message that is too large.
        Raises MessageNotStored (E203) if the disk is full; the message is read to its end first, so that an
        answer is possible.
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
    """The next `count` bytes. Raises ConnectionError if the other side closes first."""
    received = bytearray()
    while len(received) < count:
        piece = line.recv(min(1 << 20, count - len(received)))
        if not piece:
            raise ConnectionError("the other side closed the connection in the middle of a message")
        received += piece
    return bytes(received)


def ask_worker(path: Path, folder: Path, request: SignedMessage, budget_s: float) -> SignedMessage:
    """The answer of the worker at this socket, which may still be loading its data.

    folder: where the bytes of large tensors are stored. Raises OSError if there is no answer within
    `budget_s` seconds.
    """
    until = time.monotonic() + budget_s
    while True:
        with socket.socket(socket.AF_UNIX) as line:
            try:
                line.connect(str(path))
            except (FileNotFoundError, ConnectionRefusedError):
                if time.monotonic() >= until:
                    raise TimeoutError from None
                time.sleep(RETRY_S)
                continue
            left_s = max(0.1, until - time.monotonic())
            line.settimeout(left_s)
            line.sendall(BUDGET.pack(left_s))
            request.send(line)
            return SignedMessage.receive(line, folder)


def share_name(path: str) -> str:
    """The name of the Share of a tensor's path in an answer: "weights", "score/SCOPE", or "part/leaf"."""
    first, *rest = path.split("/")
    if first in ("shares", "early"):
        return "/".join(rest[:2])
    return "weights" if first == "w" else path
