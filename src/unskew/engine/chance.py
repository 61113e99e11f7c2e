"""Where the randomness comes from that a guarantee rests on: the study's seed in a simulation, else the operating system."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from unskew.core.keys import key, numpy_key
from unskew.core.values import Normal

DRAWS = 4
"""Numbers of the operating system that are averaged for each one of noise, so that its rounding does not give the noise
away (Holohan & Braghin, ESORICS 2021)."""


class Chance(Protocol):
    """A source of noise and of cohorts. described: in words, for accounts. secret: nobody can draw the same again."""

    described: str
    secret: bool

    def normal(self, t: int, part: str) -> Normal:
        """The noise of this Part in round t."""
        ...

    def cohort(self, t: int) -> np.random.Generator:
        """Decides who is asked in round t."""
        ...

    def samples(self, t: int, client: int) -> np.random.Generator:
        """Decides which samples a client trains on in round t."""
        ...


@dataclass(frozen=True)
class Keyed:
    """From a seed: a run can be repeated, and whoever knows the seed can take the noise away."""

    seed: int
    described = "noise and samples are drawn from the study's seed, so this holds for a simulation only"
    secret = False

    def normal(self, t: int, part: str) -> Normal:
        def draw(shape: tuple[int, ...], purpose: str) -> Tensor:
            return torch.randn(shape, dtype=torch.float64, generator=key(self.seed, t, part, "protect", purpose))

        return draw

    def cohort(self, t: int) -> np.random.Generator:
        return numpy_key(self.seed, t, "cohort")

    def samples(self, t: int, client: int) -> np.random.Generator:
        return numpy_key(self.seed, t, client, "samples")


@dataclass(frozen=True)
class System:
    """From the operating system's generator: nobody can draw it again, and nothing of it is kept."""

    described = "noise and samples are drawn from the operating system"
    secret = True

    def normal(self, t: int, part: str) -> Normal:
        return lambda shape, purpose: system_normal(shape)

    def cohort(self, t: int) -> np.random.Generator:
        return np.random.default_rng(int.from_bytes(os.urandom(32), "big"))

    def samples(self, t: int, client: int) -> np.random.Generator:
        return self.cohort(t)


def system_normal(shape: tuple[int, ...]) -> Tensor:
    """Standard normal numbers from the operating system's generator, float64."""
    size = math.prod(shape)
    bits = np.frombuffer(os.urandom(8 * DRAWS * size), dtype=np.uint64).reshape(DRAWS, size) >> np.uint64(11)
    drawn = ndtri((bits.astype(np.float64) + 0.5) * 2.0**-53).sum(0) / math.sqrt(DRAWS)
    return torch.from_numpy(drawn).reshape(shape)
