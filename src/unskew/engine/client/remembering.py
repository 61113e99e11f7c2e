"""What a user's model keeps in attributes of its layers from one pass to the next, as a counter does.

Nothing of a run saves, sends or merges such values, and all clients that a process trains would go on from one another's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unskew.errors import UsageError

_OF_ANY_MODULE = frozenset(vars(nn.Module()))
_CLOSE = 1e-4
"""The largest difference, relative to the numbers, of what two equal passes leave behind, which a GPU may add up in another order."""


def check(module: nn.Module, again: Callable[[], object]) -> None:
    """Compare what a pass has left in attributes with what an equal one, `again`, leaves there after it.

    What a forward notes of the samples before it is no matter, for it is the same both times. Raises UsageError (E123).
    """
    first = _attributes(module)
    again()
    second = _attributes(module)
    if changed := [n for n, value in second.items() if n not in first or not _same(first[n], value)]:
        raise UsageError(
            "E123",
            f"the model's forward changes its attribute '{changed[0]}' at every pass, which no run could save or resume, and which "
            "clients would take from one another; leave it out, or make it a buffer of floats that is updated in place.",
        )


class Remembered:
    """What Parts keep on themselves or their classes between rounds; what is noted there once and stays, such as a table that
    is made when it is first wanted, is no matter."""

    def __init__(self, parts: Sequence[Any]):
        self.parts, self.before = parts, dict[str, dict[str, Any]]()

    def check(self) -> None:
        """To be called after every round. Raises UsageError (E127) for what has another value than after the round before."""
        for part in self.parts:
            own = [k for k in type(part).__mro__ if k.__module__.partition(".")[0] != "unskew" and k is not object]
            names = {n: v for k in (*reversed(own), part) for n, v in vars(k).items() if not n.startswith("__")}
            now = {n: _copy(v) for n, v in names.items()}
            before = self.before.get(part.name, {})
            if moved := [n for n, v in now.items() if n in before and _moved(before[n], v)]:
                text = f"'{part.name}' has changed '{moved[0]}', which it keeps on the Part or its class"
                raise UsageError(
                    "E127",
                    f"{text}: no checkpoint holds it, and clients take it from one another; keep it in a slice, c.mine or s.",
                )
            self.before[part.name] = now


def _moved(before: Any, now: Any) -> bool:
    """Whether a value is another one; what was added to a dictionary or a list, as a log is kept, is none."""
    if isinstance(before, list) and isinstance(now, list):
        return len(now) < len(before) or any(map(_moved, before, now))
    if isinstance(before, dict) and isinstance(now, dict):
        return any(key not in now or _moved(v, now[key]) for key, v in before.items())
    return not _same(before, now)


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Copies of all attributes of a user's layers that are neither parameters, buffers nor layers, by name."""
    return {
        f"{name}.{key}".lstrip("."): _copy(value)
        for name, layer in module.named_modules()
        if not type(layer).__module__.startswith("torch.nn.")
        for key, value in vars(layer).items()
        if key not in _OF_ANY_MODULE
    }


def _copy(value: Any) -> Any:
    """Of numbers, texts, arrays and what holds them; None of other objects, which are taken to be the same."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return torch.as_tensor(value.copy()) if value.dtype.kind in "biuf" else None
    if isinstance(value, Mapping):
        return {str(key): _copy(v) for key, v in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_copy(v) for v in value]
    return value if isinstance(value, (bool, int, float, str)) else None


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        return torch.allclose(a, b, rtol=_CLOSE, equal_nan=True) if a.is_floating_point() else torch.equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(v, b[key]) for key, v in a.items())
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, float):
        return math.isclose(a, b, rel_tol=_CLOSE) or (math.isnan(a) and math.isnan(b))
    return a == b
