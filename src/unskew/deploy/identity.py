"""Keys of a coordinator and of sites: made where they are used, kept in a file nobody else may read, never sent.

ECDSA over P-384, the kind Flower's node authentication takes, so that a site has one key for both.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from unskew.errors import UsageError

try:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
except ImportError as error:  # the extra is not installed
    raise UsageError("E501", "a deployment needs Flower and cryptography: pip install 'unskew[flower]'.") from error

_LAW = ec.ECDSA(hashes.SHA256())


class Public:
    """A key that checks signatures."""

    def __init__(self, key: ec.EllipticCurvePublicKey):
        self.key = key

    @staticmethod
    def parse(text: str) -> Public:
        """From the one line `ecdsa-sha2-nistp384 AAAA...`. Raises UsageError (E503) for anything else."""
        try:
            key = serialization.load_ssh_public_key(text.strip().encode())
        except Exception as error:  # cryptography raises a dozen kinds for text that is no key
            raise UsageError("E503", "this is no public key; it should begin with ecdsa-sha2-nistp384.") from error
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
            raise UsageError("E503", "this public key is of another kind; it should begin with ecdsa-sha2-nistp384.")
        return Public(key)

    @staticmethod
    def of_pem(text: str) -> Public:
        """Raises UsageError (E503) for what is no such key."""
        try:
            key = serialization.load_pem_public_key(text.encode())
        except ValueError as error:
            raise UsageError("E503", "this is no public key in PEM form.") from error
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise UsageError("E503", "this public key is of another kind.")
        return Public(key)

    @property
    def text(self) -> str:
        form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        return self.key.public_bytes(*form).decode()

    @property
    def fingerprint(self) -> str:
        """16 bytes of the key's SHA-256, in hexadecimal pairs, to be read out over the telephone."""
        sha = hashlib.sha256(self.text.encode()).hexdigest()[:32].upper()
        return ":".join(sha[i : i + 2] for i in range(0, 32, 2))

    def signed(self, message: bytes, signature: bytes) -> bool:
        try:
            self.key.verify(signature, message, _LAW)
        except InvalidSignature:
            return False
        return True


class Private:
    """A key that signs."""

    def __init__(self, key: ec.EllipticCurvePrivateKey):
        self.key = key

    @staticmethod
    def make() -> Private:
        return Private(ec.generate_private_key(ec.SECP384R1()))

    @property
    def public(self) -> Public:
        return Public(self.key.public_key())

    def sign(self, message: bytes) -> bytes:
        return self.key.sign(message, _LAW)

    def save(self, path: Path) -> None:
        """OpenSSH form, mode 0600 from its first byte. Raises UsageError (E502) where a file is already."""
        form = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        write_secret(path, self.key.private_bytes(*form))

    @staticmethod
    def load(path: Path) -> Private:
        """Raises UsageError: E503 if it is no key, E508 if others may read it."""
        if not path.exists():
            raise UsageError("E503", f"there is no key {path}.")
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise UsageError("E508", f"others may read the private key {path}; run: chmod 600 {path}")
        try:
            key = serialization.load_ssh_private_key(path.read_bytes(), None)
        except Exception as error:
            raise UsageError("E503", f"{path} is no private key.") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise UsageError("E503", f"{path} is a key of another kind.")
        return Private(key)


def write_secret(path: Path, data: bytes) -> None:
    """A new file of mode 0600. Raises UsageError (E502) rather than overwrite one."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UsageError("E502", f"{path} exists and is not overwritten.") from None
    with os.fdopen(handle, "wb") as file:
        file.write(data)
