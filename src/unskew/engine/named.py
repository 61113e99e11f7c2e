"""What a user's own class or function computes with beside its own text: the values, functions and modules that it names.

The text of `loss` says `MU * term`, in a notebook for instance, and what MU is stands in another cell.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Iterator
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

from unskew import own
from unskew.engine.compiled import compiled, functions, written
from unskew.engine.edited import source_of

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


def of_value(name: str, value: Any) -> Iterator[str]:
    """What a setting of this name holds, and what that names in turn where it is a function or class of a user's own."""
    yield from _Walk().of_value(name, value)


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
                for function in functions(value):
                    yield from (f"{name}: {text}" for text in self._of_function(function))
        else:
            for function in functions(kind):
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
                yield from self.of_value(name, value)

    def of_value(self, name: str, value: Any) -> Iterator[str]:
        if isinstance(value, ModuleType):
            file = value.__file__ if is_users(value) else None
            if file:
                yield f"{name} {own.digest(file)}"
        elif inspect.isclass(value) or inspect.isfunction(value):
            if is_users(value) and id(value) not in self._seen:
                yield f"{name} {text_of(value)}"
                yield from self.within(value)
        elif text := written(value):
            yield f"{name}={text}"


def text_of(kind: Any) -> str:
    """The source of a class or function; where Python has none, what its functions were compiled to. Raises UsageError (E112)
    where the source is no longer what Python runs."""
    if (text := source_of(kind)) is not None:
        return text
    values = vars(kind).items() if inspect.isclass(kind) else [("", kind)]
    bodies = [f"{n}: {compiled(f.__code__)}" for n, v in values for f in functions(v)]
    plain = [f"{n}={value}" for n, v in values if not n.startswith("__") and (value := written(v))]
    return "\n".join((*bodies, *plain))


def _loaded(code: CodeType) -> list[str]:
    """The globals and enclosed variables that code reads, also in functions that it makes, each once."""
    names = [str(i.argval) for i in dis.get_instructions(code) if i.opname in (*_GLOBALS, *_CELLS)]
    inner = [name for one in code.co_consts if isinstance(one, CodeType) for name in _loaded(one)]
    return [*dict.fromkeys(names + inner)]


def _adds(code: CodeType) -> bool:
    """Whether code puts something into a list or a dictionary, which may be a log that it keeps and does not read."""
    puts = any(i.opname == "STORE_SUBSCR" for i in dis.get_instructions(code))
    return puts or any(_adds(c) for c in code.co_consts if isinstance(c, CodeType)) or bool(_ADDING & {*code.co_names})


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
