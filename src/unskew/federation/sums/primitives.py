"""The cryptography of secure aggregation, all from libraries: Flower's key agreement, encryption and secret
sharing, and masks from AES in counter mode by `cryptography`.

Flower's own masks are drawn from 32 bits of each key, few enough for exhaustive search, so they are not
used. Here each key makes only one mask. Keys, seeds and shares come from the operating system's generator.
"""

# pyright: reportMissingImports=false
# Flower lives in an environment of its own, and types are checked in the one without it.

from __future__ import annotations

import base64
import hashlib
import os
from dataclasses import dataclass

import torch
from torch import Tensor

from unskew.errors import MissingPackage

try:
    from cryptography.fernet import InvalidToken
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import (
        decrypt,
        encrypt,
        generate_shared_key,
    )
    from flwr.common.secure_aggregation.secaggplus_utils import (
        share_keys_plaintext_concat,
        share_keys_plaintext_separate,
    )
    from flwr.supercore.primitives.asymmetric import (
        bytes_to_public_key,
        generate_key_pairs,
        public_key_to_bytes,
    )
except ImportError as error:  # the extra is not installed
    raise MissingPackage("secure aggregation", "Flower 1.41", "flower") from error

SCALAR = 48
"""Bytes of a private key on the curve secp384r1, which Flower's keys are on."""
SEED = 32


@dataclass(frozen=True)
class KeyPair:
    """private: the scalar, which can be split into shares; public: in PEM form, for sending."""

    private: bytes
    public: str

    @staticmethod
    def make() -> KeyPair:
        """A new pair of keys."""
        private, public = generate_key_pairs()
        number = private.private_numbers().private_value
        return KeyPair(number.to_bytes(SCALAR, "big"), public_key_to_bytes(public).decode())


def new_seed() -> bytes:
    """A random seed for a mask, from the operating system."""
    return os.urandom(SEED)


def commitment(secret: bytes) -> str:
    """A digest that identifies a reconstructed secret without revealing it."""
    return hashlib.sha256(secret).hexdigest()


def public_of(private: bytes) -> str:
    """The public key of a private one. Raises ValueError for invalid bytes."""
    return public_key_to_bytes(_private_key(private).public_key()).decode()


def agree_key(private: bytes, public: str) -> bytes:
    """The common secret of two sites, from one's private and the other's public key.

    Raises ValueError for an invalid public key, or one on another curve.
    """
    try:
        return generate_shared_key(_private_key(private), bytes_to_public_key(public.encode()))
    except Exception as error:  # the library names every way in which bytes are no key by another class
        raise ValueError(f"a public key cannot be used ({type(error).__name__})") from None


def split_secret(secret: bytes, needed: int, sites: int) -> list[bytes]:
    """Shares of a secret: any `needed` of them restore it, and fewer reveal nothing about it."""
    return create_shares(secret, needed, sites)


def combine_secret(shares: list[bytes]) -> bytes:
    """The secret of these shares. Raises ValueError for shares that do not fit together."""
    try:
        return combine_shares(shares)
    except Exception as error:
        raise ValueError(f"shares do not fit together ({type(error).__name__})") from None


def encryption_key(common: bytes, context: str) -> bytes:
    """The key for messages between two sites, which only sites with a common context have."""
    return base64.urlsafe_b64encode(mask_seed(common, f"sealing {context}"))


def encrypt_shares(common: bytes, giver: int, taker: int, of_seed: bytes, of_key: bytes) -> str:
    """Two shares from the giver for the taker (indices in the roster), readable only by these two sites."""
    return encrypt(common, share_keys_plaintext_concat(giver, taker, of_seed, of_key)).decode()


def decrypt_shares(common: bytes, text: str) -> tuple[int, int, bytes, bytes]:
    """(giver, taker, share of the seed, share of the key). Raises ValueError for a changed text."""
    try:
        return share_keys_plaintext_separate(decrypt(common, text.encode()))
    except (InvalidToken, ValueError, TypeError):
        raise ValueError("it was not encrypted by the site that it names") from None


def mask_seed(common: bytes, context: str) -> bytes:
    """The seed of the mask that two sites have in common, if they have a common context."""
    derived = HKDF(algorithm=hashes.SHA256(), length=SEED, salt=None, info=context.encode())
    return derived.derive(base64.urlsafe_b64decode(common))


def mask(secret: bytes, numbers: int, bits: int) -> Tensor:
    """[numbers] uniform over all whole numbers of so many bits, int64 or int32: the key stream of AES-256."""
    stream = (
        Cipher(algorithms.AES(secret), modes.CTR(bytes(16))).encryptor().update(bytes(numbers * bits // 8))
    )
    return torch.frombuffer(bytearray(stream), dtype=dtype_of(bits))


def dtype_of(bits: int) -> torch.dtype:
    """The integer type with additions that wrap around at so many bits."""
    return torch.int64 if bits == 64 else torch.int32


def _private_key(scalar: bytes) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int.from_bytes(scalar, "big"), ec.SECP384R1())
