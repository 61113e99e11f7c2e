"""The sources of random numbers on which a privacy guarantee relies.

Noise that protects clients comes from the study's seed in a simulation, and from the operating system over a
network.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from unskew.core.random_keys import Normal, key, numpy_key

DRAWS_PER_NUMBER = 4
"""The number of draws from the operating system that each noise value combines, so that rounding does not
reveal it (Holohan & Braghin, ESORICS 2021)."""


@dataclass(frozen=True)
class SeededSource:
    """Draws from a seed: a run can be repeated, and a reader who knows the seed can remove the noise.

    described: the source in words, for accounts. secret: its numbers cannot be drawn again.
    """

    seed: int
    described = "noise and samples are drawn from the study's seed, so this holds for a simulation only"
    secret = False

    def normal(self, t: int, part: str) -> Normal:
        """The noise of this Part in round t."""

        def draw(shape: tuple[int, ...], purpose: str) -> Tensor:
            generator = key(self.seed, t, part, "protect", purpose)
            return torch.randn(shape, dtype=torch.float64, generator=generator)

        return draw

    def cohort(self, t: int) -> np.random.Generator:
        """The generator that draws the cohort of round t."""
        return numpy_key(self.seed, t, "cohort")

    def samples(self, t: int, client: int) -> np.random.Generator:
        """The generator that draws a client's training samples in round t."""
        return numpy_key(self.seed, t, client, "samples")


@dataclass(frozen=True)
class SystemSource:
    """Draws from the operating system's generator, which cannot be repeated."""

    described = "noise and samples are drawn from the operating system"
    secret = True

    def normal(self, t: int, part: str) -> Normal:
        return lambda shape, purpose: system_normal(shape)

    def cohort(self, t: int) -> np.random.Generator:
        return np.random.default_rng(int.from_bytes(os.urandom(32), "big"))

    def samples(self, t: int, client: int) -> np.random.Generator:
        return self.cohort(t)


RandomSource: TypeAlias = SeededSource | SystemSource


def system_normal(shape: tuple[int, ...]) -> Tensor:
    """Standard normal numbers from the operating system's generator, float64."""
    from scipy.special import ndtri  # slow to import, and simulations draw from a seed

    size = math.prod(shape)
    bits = np.frombuffer(os.urandom(8 * DRAWS_PER_NUMBER * size), dtype=np.uint64).reshape(
        DRAWS_PER_NUMBER, size
    ) >> np.uint64(11)
    drawn = ndtri((bits.astype(np.float64) + 0.5) * 2.0**-53).sum(0) / math.sqrt(DRAWS_PER_NUMBER)
    return torch.from_numpy(drawn).reshape(shape)
