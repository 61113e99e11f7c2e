"""Random generators that are keyed by their purpose, and noise on a grid.

    key(seed, round, client, "batch")

gives the same numbers for any order of clients, any lanes they train in, and any number of workers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor


def digest(*what: object) -> int:
    """A 63-bit hash of the arguments; numbers, strings and tuples of them have the same hash on every
    machine."""
    text = "\x1f".join(f"{type(w).__name__}:{w}" for w in what)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def key(*what: object) -> torch.Generator:
    """A torch generator, on the CPU, seeded with the hash of its purpose."""
    return torch.Generator().manual_seed(digest(*what))


def numpy_key(*what: object) -> np.random.Generator:
    """A NumPy generator seeded with the hash of its purpose; partitions and availability draw from it."""
    return np.random.default_rng(digest(*what))


Normal: TypeAlias = Callable[[tuple[int, ...], str], Tensor]
"""(shape, purpose) -> standard normal numbers, float64."""

NOISE_GRID = 2.0**-20
"""The distance between two numbers that a noisy sum may have, in deviations of its noise."""


def add_noise(total: Tensor, deviation: float, drawn: Tensor) -> Tensor:
    """total + deviation * drawn in float64, rounded to a multiple of GRID * deviation. drawn: standard
    normal, float64.

    The multiples are the same for every total, so that no result excludes a total by its last bits, as sums
    of floating-point numbers do (Mironov, CCS 2012). Nothing that is computed from the result, in any
    precision, excludes one either.
    """
    if not deviation:
        return total.double()
    step = NOISE_GRID * deviation
    return ((total.double() + deviation * drawn.to(total.device)) / step).round() * step


Keys: TypeAlias = Callable[[str], torch.Generator]
"""(purpose) -> a generator on the CPU, for one client in one round; client and server get the same one."""
