"""The sources of random numbers on which a privacy guarantee relies, and a check that users' hooks do not
draw from global generators.

Noise that protects clients comes from the study's seed in a simulation, and from the operating system over a
network. A run does not seed the global generators of the process, so a run whose hooks draw from them could
not be repeated. Under vmap torch refuses its own generator; otherwise, and for the generators of Python and
NumPy, their states are compared before and after. Other threads may draw from them, too, so a Part is only
held responsible for a generator that its code names.
"""

from __future__ import annotations

import inspect
import math
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from unskew.core.keys import Normal, key, numpy_key
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.trip import Trip
from unskew.core.user_parts import GUIDE, is_own
from unskew.errors import UsageError

DRAWS_PER_NUMBER = 4
"""The number of draws from the operating system that each noise value combines, so that rounding does not
reveal it (Holohan & Braghin, ESORICS 2021)."""


class RandomSource(Protocol):
    """A source of noise, cohorts and samples. described: in words, for accounts. secret: its numbers cannot
    be drawn again."""

    described: str
    secret: bool

    def normal(self, t: int, part: str) -> Normal:
        """The noise of this Part in round t."""
        ...

    def cohort(self, t: int) -> np.random.Generator:
        """The generator that draws the cohort of round t."""
        ...

    def samples(self, t: int, client: int) -> np.random.Generator:
        """The generator that draws a client's training samples in round t."""
        ...


@dataclass(frozen=True)
class SeededSource:
    """Draws from a seed: a run can be repeated, and a reader who knows the seed can remove the noise."""

    seed: int
    described = "noise and samples are drawn from the study's seed, so this holds for a simulation only"
    secret = False

    def normal(self, t: int, part: str) -> Normal:
        def draw(shape: tuple[int, ...], purpose: str) -> Tensor:
            return torch.randn(
                shape, dtype=torch.float64, generator=key(self.seed, t, part, "protect", purpose)
            )

        return draw

    def cohort(self, t: int) -> np.random.Generator:
        return numpy_key(self.seed, t, "cohort")

    def samples(self, t: int, client: int) -> np.random.Generator:
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


def system_normal(shape: tuple[int, ...]) -> Tensor:
    """Standard normal numbers from the operating system's generator, float64."""
    from scipy.special import ndtri  # slow to import, and simulations draw from a seed

    size = math.prod(shape)
    bits = np.frombuffer(os.urandom(8 * DRAWS_PER_NUMBER * size), dtype=np.uint64).reshape(
        DRAWS_PER_NUMBER, size
    ) >> np.uint64(11)
    drawn = ndtri((bits.astype(np.float64) + 0.5) * 2.0**-53).sum(0) / math.sqrt(DRAWS_PER_NUMBER)
    return torch.from_numpy(drawn).reshape(shape)


TORCH_GENERATOR = "torch's own generator"
_SOURCES: dict[str, tuple[Any, ...]] = {
    "Python's `random`": (random, random._inst),  # type: ignore[attr-defined]
    "`numpy.random`": (np, np.random, np.random.mtrand._rand),  # type: ignore[attr-defined]
}
"""By generator, the modules and objects through which a program reaches it."""


def global_states() -> dict[str, Any]:
    """The states of the global generators of Python and NumPy."""
    _, words, place, *_ = np.random.get_state()
    return {"Python's `random`": random.getstate(), "`numpy.random`": (words.tobytes(), place)}  # type: ignore[union-attr]


def _all_states() -> dict[str, Any]:
    return {**global_states(), TORCH_GENERATOR: torch.get_rng_state().numpy().tobytes()}


@contextmanager
def no_global_random(method: Method) -> Iterator[None]:
    """A context that raises UsageError (E127) if a user's own Part draws from a global generator."""
    own = [p for p in method.parts if is_own(p)]
    if not own:
        yield
        return
    before = _all_states()
    yield
    for name, state in _all_states().items():
        blamed = [p.name for p in own if name == TORCH_GENERATOR or names_any(p, _SOURCES[name])]
        if state != before[name] and blamed:
            text = f"a hook of '{' or '.join(blamed)}' draws from {name}, which no seed of a run reaches"
            raise UsageError("E127", f"{text}; define `noise` and take random numbers from c.noise. {GUIDE}")


def names_any(part: Part, sources: tuple[Any, ...]) -> bool:
    """Whether the code of a Part's class, or a function of the same file that it calls, names one of these
    objects."""
    own = [k for k in type(part).__mro__ if k.__module__.partition(".")[0] != "unskew" and k is not object]
    waiting = [value for k in own for value in vars(k).values()]
    seen = set[int]()
    while waiting:
        value = waiting.pop()
        if any(value is s or getattr(value, "__self__", None) is s for s in sources):
            return True
        if id(value) in seen:
            continue
        seen.add(id(value))
        waiting += _reachable(value)
    return False


def _reachable(value: Any) -> Iterator[Any]:
    """The objects in a function's closure and globals, and the functions of a property, Trips, or a tuple."""
    if isinstance(value, property | staticmethod | classmethod):
        yield value.fget if isinstance(value, property) else value.__func__
    elif isinstance(value, tuple):
        yield from (one for one in value if isinstance(one, Trip))
    elif isinstance(value, Trip):
        yield from (value.client, value.server)
    elif inspect.isfunction(value):
        yield getattr(value, "__wrapped__", None)
        yield from (cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell))
        if value.__module__.partition(".")[0] != "unskew":
            yield from (
                value.__globals__[name] for name in _code_names(value.__code__) if name in value.__globals__
            )


def _code_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_names(constant)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
