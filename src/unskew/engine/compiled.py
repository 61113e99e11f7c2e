"""What Python keeps of a class or function after it has read it: functions, what these were compiled to, and plain values."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

import numpy as np
from torch import Tensor

from unskew.core.trip import Trip

SCALARS = (bool, int, float, complex, str, bytes, type(None))


def functions(value: Any) -> Iterator[FunctionType]:
    """The functions in an entry of a class, without what wraps them."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property):
        yield from (f for one in (value.fget, value.fset) if one for f in functions(one))
    elif isinstance(value, functools.cached_property | functools.partial):
        yield from functions(value.func)
    elif isinstance(value, Trip):
        yield from (f for one in (value.when, value.client, value.server, value.shares) for f in functions(one))
    elif isinstance(value, tuple):
        yield from (f for one in value if isinstance(one, Trip) for f in functions(one))
    elif inspect.isfunction(unwrapped := inspect.unwrap(value) if callable(value) else value):
        yield unwrapped


def written(value: Any) -> str:
    """A plain value, an array or a tree of these; "" for anything else, of which nobody can say whether it is the same."""
    if isinstance(value, SCALARS):
        return repr(value)
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, Mapping):
        return str({str(k): written(v) for k, v in value.items()})
    if isinstance(value, set | frozenset):
        return str(sorted(map(written, value)))
    return str([*map(written, value)]) if isinstance(value, list | tuple) else ""


def compiled(code: CodeType) -> str:
    """What decides about what code does, without where in a file it stands."""
    constants = [compiled(one) if isinstance(one, CodeType) else written(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"
