"""Random numbers that hooks of users' own Parts draw from generators that all of a process have in common.

No seed of a run reaches those, so that no two runs would be equal. Under vmap torch refuses its own; where one client trains
after another, and of Python's and NumPy's, nobody would notice. Other threads of the process may draw from them, too, so a Part
is only blamed for one that its code names.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import numpy as np
import torch

from unskew.core.guarded import GUIDE, is_own
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.trip import Trip
from unskew.errors import UsageError

TORCHS = "torch's own generator"
_SOURCES: dict[str, tuple[Any, ...]] = {
    "Python's `random`": (random, random._inst),  # type: ignore[attr-defined]
    "`numpy.random`": (np, np.random, np.random.mtrand._rand),  # type: ignore[attr-defined]
}
"""By generator, the modules and objects through which a program reaches it."""


def others() -> dict[str, Any]:
    """The states of the generators beside torch's that all of a process have in common."""
    _, words, place, *_ = np.random.get_state()
    return {"Python's `random`": random.getstate(), "`numpy.random`": (words.tobytes(), place)}  # type: ignore[union-attr]


def _states() -> dict[str, Any]:
    return {**others(), TORCHS: torch.get_rng_state().numpy().tobytes()}


@contextmanager
def undrawn(method: Method) -> Iterator[None]:
    """Raises UsageError (E127) if a Part of a user's own has drawn from one of these generators within it."""
    own = [p for p in method.parts if is_own(p)]
    if not own:
        yield
        return
    before = _states()
    yield
    for name, state in _states().items():
        blamed = [p.name for p in own if name == TORCHS or names(p, _SOURCES[name])]
        if state != before[name] and blamed:
            text = f"a hook of '{' or '.join(blamed)}' draws from {name}, which no seed of a run reaches"
            raise UsageError("E127", f"{text}; define `noise` and take random numbers from c.noise. {GUIDE}")


def names(part: Part, sources: tuple[Any, ...]) -> bool:
    """Whether the code of a Part's class, or a function of the same file that it calls, names one of these objects."""
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
        waiting += _within(value)
    return False


def _within(value: Any) -> Iterator[Any]:
    """What a function closes over and names, and what lies in a property, a Trip or a tuple of them."""
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
            yield from (value.__globals__[name] for name in _named(value.__code__) if name in value.__globals__)


def _named(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _named(constant)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
