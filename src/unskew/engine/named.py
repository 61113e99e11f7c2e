"""What a user's own class or function computes with beside its own text: the values, functions and modules that it names.

The text of `loss` says `MU * term`, in a notebook for instance, and what MU is stands in another cell.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor

from unskew import own
from unskew.core.trip import Trip

SCALARS = (bool, int, float, complex, str, bytes, type(None))
_CELLS, _GLOBALS = ("LOAD_DEREF", "LOAD_CLASSDEREF"), ("LOAD_GLOBAL", "LOAD_NAME")

_ADDING = {"append", "extend", "insert", "setdefault", "update"}


def is_users(kind: Any) -> bool:
    """Whether a class, function or module is a user's own: neither this package's nor Python's nor installed."""
    name = kind.__name__ if isinstance(kind, ModuleType) else getattr(kind, "__module__", None) or ""
    root = name.partition(".")[0]
    if root in own.NOT_OWN:
        return False
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return "site-packages" not in file and "dist-packages" not in file


def named(kind: Any) -> Iterator[str]:
    """What this class or function names, and what that names in turn, as texts that change when one of it does."""
    yield from _Walk().within(kind)


class _Walk:
    """A walk through what code names. It knows where it has been, for functions may name each other."""

    def __init__(self) -> None:
        self._seen = set[int]()

    def within(self, kind: Any) -> Iterator[str]:
        """What a class or function of a user's own names, without its own text."""
        if id(kind) in self._seen or not is_users(kind):
            return
        self._seen.add(id(kind))
        if inspect.isclass(kind):
            for name, value in vars(kind).items():
                for function in _functions(value):
                    yield from (f"{name}: {text}" for text in self._of_function(function))
        else:
            for function in _functions(kind):
                yield from self._of_function(function)

    def _of_function(self, function: FunctionType) -> Iterator[str]:
        if function.__code__.co_filename == "<string>" and function.__name__.startswith("__"):  # what dataclasses write
            return
        cells = zip(function.__code__.co_freevars, function.__closure__ or ())
        enclosed = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
        logs = _adds(function.__code__)
        for name in _loaded(function.__code__):
            if name not in enclosed and name not in function.__globals__:
                continue
            value = enclosed[name] if name in enclosed else function.__globals__[name]
            if not (logs and isinstance(value, list | dict | set)):
                yield from self._of_value(name, value)

    def _of_value(self, name: str, value: Any) -> Iterator[str]:
        if isinstance(value, ModuleType):
            file = value.__file__ if is_users(value) else None
            if file:
                yield f"{name} {own.digest(file)}"
        elif inspect.isclass(value) or inspect.isfunction(value):
            if is_users(value) and id(value) not in self._seen:
                yield f"{name} {text_of(value)}"
                yield from self.within(value)
        elif text := _written(value):
            yield f"{name}={text}"


def text_of(kind: Any) -> str:
    """The source of a class or function; where Python has none, as of a class that was typed into a notebook, what its
    functions were compiled to."""
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        values = vars(kind).items() if inspect.isclass(kind) else [("", kind)]
        functions = [f"{n}: {_compiled(f.__code__)}" for n, v in values for f in _functions(v)]
        plain = [f"{n}={text}" for n, v in values if not n.startswith("__") and (text := _written(v))]
        return "\n".join((*functions, *plain))


def _functions(value: Any) -> Iterator[FunctionType]:
    """The functions in an entry of a class, without what wraps them."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property):
        yield from (f for one in (value.fget, value.fset) if one for f in _functions(one))
    elif isinstance(value, functools.cached_property | functools.partial):
        yield from _functions(value.func)
    elif isinstance(value, Trip):
        yield from (f for one in (value.when, value.client, value.server, value.shares) for f in _functions(one))
    elif isinstance(value, tuple):
        yield from (f for one in value if isinstance(one, Trip) for f in _functions(one))
    elif inspect.isfunction(unwrapped := inspect.unwrap(value) if callable(value) else value):
        yield unwrapped


def _written(value: Any) -> str:
    """A plain value, an array or a tree of these; "" for anything else, of which nobody can say whether it is the same."""
    if isinstance(value, SCALARS):
        return repr(value)
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, Mapping):
        return str({str(k): _written(v) for k, v in value.items()})
    if isinstance(value, set | frozenset):
        return str(sorted(map(_written, value)))
    return str([*map(_written, value)]) if isinstance(value, list | tuple) else ""


def _loaded(code: CodeType) -> list[str]:
    """The globals and enclosed variables that code reads, also in functions that it makes, each once."""
    names = [str(i.argval) for i in dis.get_instructions(code) if i.opname in (*_GLOBALS, *_CELLS)]
    inner = [name for one in code.co_consts if isinstance(one, CodeType) for name in _loaded(one)]
    return [*dict.fromkeys(names + inner)]


def _adds(code: CodeType) -> bool:
    """Whether code puts something into a list or a dictionary, which may be a log that it keeps and does not read."""
    puts = any(i.opname == "STORE_SUBSCR" for i in dis.get_instructions(code))
    return puts or any(_adds(c) for c in code.co_consts if isinstance(c, CodeType)) or bool(_ADDING & {*code.co_names})


def _compiled(code: CodeType) -> str:
    constants = [_compiled(one) if isinstance(one, CodeType) else _written(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
