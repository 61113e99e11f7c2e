"""A message as it is carried, by Flower or through a local socket, by code that cannot and need not read it.

This file loads neither torch nor Flower: Flower starts a process for every message, and it should be light.
"""

from __future__ import annotations

import hashlib
import socket
import struct
from dataclasses import dataclass

SOCKET = "UNSKEW_SITE_SOCKET"
"""Where a site's worker listens; the client app finds it in its environment."""
BUDGET = struct.Struct(">d")
"""Seconds the worker may take, sent before each request."""
_LENGTHS = struct.Struct(">IIQ")
MOST = (1 << 24, 1 << 12, 1 << 36)
"""Bytes of text, signature and tensors that are read from a socket at all."""


@dataclass(frozen=True)
class Sealed:
    """Text, its signature and bytes, which mean nothing until `wire.unseal` has checked them."""

    text: str
    signature: bytes
    blob: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def send(self, to: socket.socket) -> None:
        text = self.text.encode()
        to.sendall(_LENGTHS.pack(len(text), len(self.signature), len(self.blob)))
        for piece in (text, self.signature, self.blob):
            to.sendall(piece)

    @staticmethod
    def receive(of: socket.socket) -> Sealed:
        """Raises ConnectionError where the other side ends in the middle, or says it will send too much."""
        lengths = _LENGTHS.unpack(exactly(of, _LENGTHS.size))
        if any(length > most for length, most in zip(lengths, MOST)):
            raise ConnectionError("a message of absurd size")
        text, signature, blob = (exactly(of, length) for length in lengths)
        return Sealed(text.decode(), signature, blob)


def exactly(of: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        piece = of.recv(min(1 << 20, count - len(found)))
        if not piece:
            raise ConnectionError("the other side ended in the middle of a message")
        found += piece
    return bytes(found)
