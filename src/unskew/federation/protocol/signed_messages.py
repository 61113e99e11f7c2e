"""Keys of a coordinator and of sites, and the messages that they sign, on their way through Flower or through
a local socket.

Keys are created where they are used, stored with mode 0600, and never sent. They are ECDSA keys over P-384,
the kind that Flower's node authentication takes, so that a site needs only one key.

A message is a text, its signature and the bytes of its tensors, opaque to the code that carries it. This file
imports neither torch nor Flower, because the process that holds a site's connection needs no torch.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import secrets
import socket
import stat
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from unskew.errors import UsageError

_SCHEME = ec.ECDSA(hashes.SHA256())


class PublicKey:
    """A key that checks signatures."""

    def __init__(self, key: ec.EllipticCurvePublicKey):
        self.key = key

    @staticmethod
    def parse(text: str) -> PublicKey:
        """Parse the one line `ecdsa-sha2-nistp384 AAAA...`. Raises UsageError (E503) for anything else."""
        try:
            key = serialization.load_ssh_public_key(text.strip().encode())
        except Exception:  # cryptography raises a dozen kinds of errors for text that is not a key
            key = None
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
            raise UsageError("E503", "this is not a public key that begins with ecdsa-sha2-nistp384.")
        return PublicKey(key)

    @staticmethod
    def from_pem(text: str) -> PublicKey:
        """Parse a key in PEM form. Raises UsageError (E503) for anything else."""
        try:
            key = serialization.load_pem_public_key(text.encode())
        except ValueError:
            key = None
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise UsageError("E503", "this is not a public key in PEM form.")
        return PublicKey(key)

    @property
    def text(self) -> str:
        """The key in OpenSSH's form, on one line."""
        form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        return self.key.public_bytes(*form).decode()

    @property
    def fingerprint(self) -> str:
        """See `fingerprint`."""
        return fingerprint(self.text.encode())

    def signed(self, message: bytes, signature: bytes) -> bool:
        """True if the private half of this key signed exactly this message."""
        try:
            self.key.verify(signature, message, _SCHEME)
        except InvalidSignature:
            return False
        return True


class PrivateKey:
    """A key that signs."""

    def __init__(self, key: ec.EllipticCurvePrivateKey):
        self.key = key

    @staticmethod
    def make() -> PrivateKey:
        """A new key on the curve P-384."""
        return PrivateKey(ec.generate_private_key(ec.SECP384R1()))

    @property
    def public(self) -> PublicKey:
        """The public key of the pair."""
        return PublicKey(self.key.public_key())

    def sign(self, message: bytes) -> bytes:
        """The signature over a message."""
        return self.key.sign(message, _SCHEME)

    def save(self, path: Path) -> None:
        """Write the key in OpenSSH form with mode 0600. Raises UsageError (E161) if the file exists."""
        form = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        write_secret(path, self.key.private_bytes(*form))

    @staticmethod
    def load(path: Path) -> PrivateKey:
        """Read a key. Raises UsageError: E503 if the file holds no such key, E521 if other users may read
        it.
        """
        if not path.exists():
            raise UsageError("E503", f"there is no key {path}.")
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise UsageError("E521", f"other users may read the private key {path}; run: chmod 600 {path}")
        try:
            key = serialization.load_ssh_private_key(path.read_bytes(), None)
        except Exception:  # cryptography raises a dozen kinds of errors for bytes that are not a key
            key = None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise UsageError("E503", f"{path} is not a private key of this kind.")
        return PrivateKey(key)


def fingerprint(data: bytes) -> str:
    """The first 16 bytes of the SHA-256 as hexadecimal pairs, short enough to read out over the telephone."""
    sha = hashlib.sha256(data).hexdigest()[:32].upper()
    return ":".join(sha[i : i + 2] for i in range(0, 32, 2))


def persistent_secret(path: Path) -> bytes:
    """The 32 random bytes in this file, which is created if it does not exist."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_secret(path, secrets.token_bytes(32))
    return path.read_bytes()


def write_secret(path: Path, data: bytes) -> None:
    """Write a new file with mode 0600. Raises UsageError (E161) if the file exists."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        text = f"{path} exists and is not overwritten; choose another folder, or move that file away."
        raise UsageError("E161", text) from None
    with os.fdopen(handle, "wb") as file:
        file.write(data)


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
    blob: bytes | memoryview

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
        return SignedMessage(bytes(text).decode(), bytes(signature), blob)


def read_exactly(line: socket.socket, count: int) -> memoryview:
    """The next `count` bytes. Raises ConnectionError if the other side closes first."""
    buffer, at = aligned_buffer(count), 0
    while at < count:
        more = line.recv_into(buffer[at : at + (1 << 20)])
        if not more:
            raise ConnectionError("the other side closed the connection in the middle of a message")
        at += more
    return buffer


def aligned_buffer(count: int) -> memoryview:
    """New memory of so many bytes at a multiple of 64, where tensors can lie as they are."""
    memory = bytearray(count + 64)
    return memoryview(memory)[-address_of(memory) % 64 :][:count]


def address_of(buffer: bytearray | memoryview) -> int:
    """The address of a writable buffer."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


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
