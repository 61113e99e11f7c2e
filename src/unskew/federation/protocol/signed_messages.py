"""Signed messages on their way through Flower or through a local socket.

A message is a text, its signature and the bytes of its tensors, opaque to the code that carries it. This file
imports neither torch nor Flower, because the process that holds a site's connection needs no torch.
"""

from __future__ import annotations

import hashlib
import socket
import struct
import time
from dataclasses import dataclass
from pathlib import Path

SOCKET = "UNSKEW_SITE_SOCKET"
"""The environment variable with the path of a site's worker's socket."""
RETRY_S = 0.1
"""Seconds between attempts to reach a worker that is not there yet."""
BUDGET = struct.Struct(">d")
"""Seconds that the worker may take; sent before each request."""
_LENGTHS = struct.Struct(">IIQ")
MOST_LENGTHS = (1 << 24, 1 << 12, 1 << 36)
"""Most bytes of text, signature and tensors read from a socket."""


@dataclass(frozen=True)
class SignedMessage:
    """A text, its signature and the bytes of tensors; unverified until `unseal` has checked them."""

    text: str
    signature: bytes
    blob: bytes

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
        for piece in (text, self.signature, self.blob):
            if piece:  # the other side may close after the last byte that it expects
                line.sendall(piece)

    @staticmethod
    def receive(line: socket.socket) -> SignedMessage:
        """Read a message from a socket.

        Raises ConnectionError if the other side closes early or announces a message that is too large.
        """
        lengths = _LENGTHS.unpack(read_exactly(line, _LENGTHS.size))
        if any(length > most for length, most in zip(lengths, MOST_LENGTHS)):
            raise ConnectionError("the announced message is too large")
        text, signature, blob = (read_exactly(line, length) for length in lengths)
        return SignedMessage(text.decode(), signature, blob)


def read_exactly(line: socket.socket, count: int) -> bytes:
    """The next `count` bytes. Raises ConnectionError if the other side closes first."""
    pieces, left = list[bytes](), count
    while left:
        piece = line.recv(min(1 << 20, left))
        if not piece:
            raise ConnectionError("the other side closed the connection in the middle of a message")
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def ask_worker(path: Path, request: SignedMessage, budget_s: float) -> SignedMessage:
    """The answer of the worker at this socket, which may still be loading its data.

    Raises OSError if there is no answer within `budget_s` seconds.
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
            return SignedMessage.receive(line)


def share_name(path: str) -> str:
    """The name of the Share of a tensor's path in an answer: "weights", "score/SCOPE", or "part/leaf"."""
    first, *rest = path.split("/")
    if first in ("shares", "early"):
        return "/".join(rest[:2])
    return "weights" if first == "w" else path
