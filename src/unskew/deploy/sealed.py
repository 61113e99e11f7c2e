"""A message in the form in which it travels, through Flower or a local socket, by way of code that cannot read it.

This file imports neither torch nor Flower, because the process that holds a site's connection needs no torch.
"""

from __future__ import annotations

import hashlib
import socket
import struct
import time
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from unskew.deploy.bulk import BLOCK, SMALL, Bulk, Stored, blocks
from unskew.errors import Paused

SOCKET = "UNSKEW_SITE_SOCKET"
"""The environment variable that tells a site's worker where to listen."""
LOADING_S = 0.1
"""How often a worker that is not there yet is tried again."""
BUDGET = struct.Struct(">d")
"""How many seconds the worker may take; sent before each request."""
_LENGTHS = struct.Struct(">IIQ")
MOST = (1 << 24, 1 << 12, 1 << 36)
"""The most bytes of text, signature and tensors that are read from a socket."""


class NoRoom(Paused):
    """A message that the disk has no room for. digest: of its text."""

    def __init__(self, digest: str, error: Paused):
        super().__init__(error.code, error.text)
        self.digest = digest


@dataclass(frozen=True)
class Sealed:
    """A text, its signature and the bytes of tensors; nothing is known about them until `wire.unseal` has checked them."""

    text: str
    signature: bytes
    blob: bytes | Bulk

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
    def receive(line: socket.socket, folder: Path) -> Sealed:
        """folder: where the bytes of large tensors are kept.

        Raises ConnectionError if the other side closes early, or announces a message that is too large; NoRoom (E203) when
        the disk is full, after all of it was read, so that the other side can be told.
        """
        lengths = _LENGTHS.unpack(exactly(line, _LENGTHS.size))
        if any(length > most for length, most in zip(lengths, MOST)):
            raise ConnectionError("the announced message is too large")
        text, signature = (exactly(line, length) for length in lengths[:2])
        without = Sealed(text.decode(), signature, b"")
        try:
            return replace(without, blob=_blob(line, lengths[2], folder))
        except Paused as error:
            raise NoRoom(without.digest, error) from error


def _blob(line: socket.socket, count: int, folder: Path) -> bytes | Bulk:
    if count <= SMALL:
        return exactly(line, count)
    stored, full, left = Stored(folder), None, count
    while left:
        block = exactly(line, min(BLOCK, left))
        left -= len(block)
        try:
            if full is None:
                stored.add(block)
        except Paused as error:
            full = error
    if full is not None:
        raise full
    return stored


def exactly(line: socket.socket, count: int) -> bytes:
    """The next `count` bytes. Raises ConnectionError if the other side closes before."""
    received = bytearray()
    while len(received) < count:
        piece = line.recv(min(1 << 20, count - len(received)))
        if not piece:
            raise ConnectionError("the other side closed the connection in the middle of a message")
        received += piece
    return bytes(received)


def through_socket(path: Path, folder: Path, request: Sealed, budget_s: float) -> Sealed:
    """The answer of the worker that listens there; one that is still loading its data is waited for.

    folder: where the bytes of large tensors are kept.

    Raises OSError if there is no answer within the budget, so that a site is never blocked for good.
    """
    until = time.monotonic() + budget_s
    with _connected(path, until) as line:
        left_s = max(0.1, until - time.monotonic())
        line.settimeout(left_s)
        line.sendall(BUDGET.pack(left_s))
        request.send(line)
        return Sealed.receive(line, folder)


def _connected(path: Path, until: float) -> socket.socket:
    while True:
        line = socket.socket(socket.AF_UNIX)
        try:
            line.connect(str(path))
            return line
        except (FileNotFoundError, ConnectionRefusedError):
            line.close()
            if time.monotonic() >= until:
                raise TimeoutError from None
            time.sleep(LOADING_S)
