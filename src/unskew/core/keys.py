"""Randomness with a purpose: a generator is named by what it is for, never by when it was made.

    key(seed, round, client, "batch")

gives the same numbers whatever the order of clients, their neighbours or the number of workers.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def digest(*what: object) -> int:
    """A 63-bit hash of the arguments; ints, strings and tuples hash alike on every machine."""
    text = "\x1f".join(f"{type(w).__name__}:{w}" for w in what)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def key(*what: object) -> torch.Generator:
    """A torch generator (on the CPU) seeded by what it is for."""
    return torch.Generator().manual_seed(digest(*what))


def numpy_key(*what: object) -> np.random.Generator:
    """The same for NumPy, where partitions and availability draw."""
    return np.random.default_rng(digest(*what))
