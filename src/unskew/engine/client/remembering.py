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
