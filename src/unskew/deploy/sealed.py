"""A message in the form in which it travels, through Flower or a local socket, by way of code that cannot read it.

This file imports neither torch nor Flower: Flower starts a process for every message, which should start fast.
"""

from __future__ import annotations

import hashlib
import socket
import struct
from dataclasses import dataclass

SOCKET = "UNSKEW_SITE_SOCKET"
"""The environment variable that tells the client app where the site's worker listens."""
BUDGET = struct.Struct(">d")
"""How many seconds the worker may take; sent before each request."""
_LENGTHS = struct.Struct(">IIQ")
MOST = (1 << 24, 1 << 12, 1 << 36)
"""The most bytes of text, signature and tensors that are read from a socket."""


@dataclass(frozen=True)
class Sealed:
    """A text, its signature and the bytes of tensors; nothing is known about them until `wire.unseal` has checked them."""

    text: str
    signature: bytes
    blob: bytes

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
        for piece in (text, self.signature, self.blob):
            line.sendall(piece)

    @staticmethod
    def receive(line: socket.socket) -> Sealed:
        """Raises ConnectionError if the other side closes early, or announces a message that is too large."""
        lengths = _LENGTHS.unpack(exactly(line, _LENGTHS.size))
        if any(length > most for length, most in zip(lengths, MOST)):
            raise ConnectionError("the announced message is too large")
        text, signature, blob = (exactly(line, length) for length in lengths)
        return Sealed(text.decode(), signature, blob)


def exactly(line: socket.socket, count: int) -> bytes:
    """The next `count` bytes. Raises ConnectionError if the other side closes before."""
    received = bytearray()
    while len(received) < count:
        piece = line.recv(min(1 << 20, count - len(received)))
        if not piece:
            raise ConnectionError("the other side closed the connection in the middle of a message")
        received += piece
    return bytes(received)
