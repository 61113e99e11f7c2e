"""Random generators that are keyed by their purpose.

    key(seed, round, client, "batch")

gives the same numbers whatever the order of clients, the lanes they train in or the number of workers.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def digest(*what: object) -> int:
    """A 63-bit hash of the arguments; numbers, strings and tuples of them have the same hash on every machine."""
    text = "\x1f".join(f"{type(w).__name__}:{w}" for w in what)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def key(*what: object) -> torch.Generator:
    """A torch generator, on the CPU, seeded with the hash of its purpose."""
    return torch.Generator().manual_seed(digest(*what))


def numpy_key(*what: object) -> np.random.Generator:
    """A NumPy generator seeded with the hash of its purpose; partitions and availability draw from it."""
    return np.random.default_rng(digest(*what))
