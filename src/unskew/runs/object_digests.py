"""Digests of models, Parts and metrics that are passed as objects; a resumed run uses them to detect a
change.

A digest covers the compiled code of a user's class or function, and the values, functions and modules that it
names, so that it is of what runs; another version of Python compiles otherwise.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

from unskew.core.description import MEMORY_ADDRESS
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.trip import Trip
from unskew.errors import UsageError, excerpt
from unskew.records.checkpoints import digest
from unskew.system import python_files
from unskew.tasks.metrics import Functions

SCALAR_TYPES = (bool, int, float, complex, str, bytes, type(None))


def functions_in(value: Any) -> Iterator[FunctionType]:
    """The functions in an entry of a class, without their wrappers."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property):
        yield from (f for one in (value.fget, value.fset) if one for f in functions_in(one))
    elif isinstance(value, functools.cached_property | functools.partial):
        yield from functions_in(value.func)
    elif isinstance(value, Trip):
        yield from (
            f for one in (value.when, value.client, value.server, value.shares) for f in functions_in(one)
        )
    elif isinstance(value, tuple):
        yield from (f for one in value if isinstance(one, Trip) for f in functions_in(one))
    elif inspect.isfunction(unwrapped := inspect.unwrap(value) if callable(value) else value):
        yield unwrapped


def value_text(value: Any) -> str:
    """A plain value, an array or a tree of these as text; "" for other values, which cannot be compared."""
    if isinstance(value, SCALAR_TYPES):
        return repr(value)
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, Mapping):
        return str({str(k): value_text(v) for k, v in value.items()})
    if isinstance(value, set | frozenset):
        return str(sorted(map(value_text, value)))
    return str([*map(value_text, value)]) if isinstance(value, list | tuple) else ""


def code_text(code: CodeType) -> str:
    """The parts of code that decide its effect, as text, without its position in a file."""
    constants = [code_text(one) if isinstance(one, CodeType) else value_text(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"


_CELL_OPCODES, _GLOBAL_OPCODES = ("LOAD_DEREF", "LOAD_CLASSDEREF"), ("LOAD_GLOBAL", "LOAD_NAME")

_ADDING_METHODS = {"append", "extend", "insert", "setdefault", "update"}


def is_user_code(kind: Any) -> bool:
    """Whether a class, function or module is the user's, and not from this package, Python or an installed
    package."""
    name = kind.__name__ if isinstance(kind, ModuleType) else getattr(kind, "__module__", None) or ""
    root = name.partition(".")[0]
    if root in python_files.FOREIGN_MODULES:
        return False
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return "site-packages" not in file and "dist-packages" not in file


def names_texts(kind: Any) -> Iterator[str]:
    """Texts of everything that a class or function names, directly or indirectly; they change when one of
    these changes."""
    yield from _NameWalk().within(kind)


def setting_texts(name: str, value: Any) -> Iterator[str]:
    """Texts of a setting's value and, for a user's function or class, of everything that it names."""
    yield from _NameWalk().of_value(name, value)


class _NameWalk:
    """A walk over the names in code. It remembers visited objects, because functions may name each other."""

    def __init__(self) -> None:
        self._seen = set[int]()

    def within(self, kind: Any) -> Iterator[str]:
        """Texts of everything that a user's class or function names, without its own text."""
        if id(kind) in self._seen or not is_user_code(kind):
            return
        self._seen.add(id(kind))
        if inspect.isclass(kind):
            for name, value in vars(kind).items():
                for function in functions_in(value):
                    yield from (f"{name}: {text}" for text in self._of_function(function))
        else:
            for function in functions_in(kind):
                yield from self._of_function(function)

    def _of_function(self, function: FunctionType) -> Iterator[str]:
        # Dataclasses generate such functions.
        if function.__code__.co_filename == "<string>" and function.__name__.startswith("__"):
            return
        cells = zip(function.__code__.co_freevars, function.__closure__ or ())
        enclosed = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
        logs = _adds_entries(function.__code__)
        for name in _names_loaded(function.__code__):
            if name not in enclosed and name not in function.__globals__:
                continue
            value = enclosed[name] if name in enclosed else function.__globals__[name]
            if not (logs and isinstance(value, list | dict | set)):
                yield from self.of_value(name, value)

    def of_value(self, name: str, value: Any) -> Iterator[str]:
        if isinstance(value, ModuleType):
            file = value.__file__ if is_user_code(value) else None
            if file:
                yield f"{name} {python_files.digest(file)}"
        elif inspect.isclass(value) or inspect.isfunction(value):
            if is_user_code(value) and id(value) not in self._seen:
                yield f"{name} {running_code(value)}"
                yield from self.within(value)
        elif text := value_text(value):
            yield f"{name}={text}"


def running_code(kind: Any) -> str:
    """The compiled code of a class or function and its plain attributes, as text.

    It is the code that runs: the file may have been edited since Python imported it.
    """
    values = vars(kind).items() if inspect.isclass(kind) else [("", kind)]
    bodies = [f"{n}: {code_text(f.__code__)}" for n, v in values for f in functions_in(v)]
    plain = [f"{n}={value}" for n, v in values if not n.startswith("__") and (value := value_text(v))]
    return "\n".join((*bodies, *plain))


def _names_loaded(code: CodeType) -> list[str]:
    """The globals and enclosed variables that code reads, including those of nested functions, without
    repetition."""
    names = [
        str(i.argval) for i in dis.get_instructions(code) if i.opname in (*_GLOBAL_OPCODES, *_CELL_OPCODES)
    ]
    inner = [name for one in code.co_consts if isinstance(one, CodeType) for name in _names_loaded(one)]
    return [*dict.fromkeys(names + inner)]


def _adds_entries(code: CodeType) -> bool:
    """Whether code adds entries to a list or dictionary, which may be a log that it never reads."""
    puts = any(i.opname == "STORE_SUBSCR" for i in dis.get_instructions(code))
    return (
        puts
        or any(_adds_entries(c) for c in code.co_consts if isinstance(c, CodeType))
        or bool(_ADDING_METHODS & {*code.co_names})
    )


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


PLAIN_TYPES = (bool, int, float, str, tuple, type(None))
PACKAGE = "unskew"


def check_method(method: object) -> None:
    """Raises UsageError (E102) for an object that is no method, with the likely spelling."""
    if isinstance(method, str | Method | Part):
        return
    if isinstance(method, type) and issubclass(method, Part):
        text = f"{method.__name__} is a class, not a Part; write {method.__name__}()."
    elif isinstance(method, list | tuple):
        text = (
            "a list of methods was given, and run trains one; use unskew.compare([...]), or join Parts by"
            " '+'."
        )
    elif isinstance(method, nn.Module):
        text = (
            f"a {type(method).__name__} was given as method; give it as model: run('fedavg', data,"
            " model=...)."
        )
    else:
        text = f"a method is a text, a Part or a Method, not {excerpt(method)}."
    raise UsageError("E102", text)


def object_digests(method: Method, model: nn.Module | None, metrics: Functions) -> dict[str, str]:
    """SHA-256 of the model, of each Part from neither this package nor a file, and of each metric, by
    description."""
    theirs = [p for p in method.parts if not p.spelling and type(p).__module__.partition(".")[0] != PACKAGE]
    parts = {f"the Part '{p.name}'": part_digest(p) for p in theirs}
    scores = {
        f"the metric '{name}'": _text_digest([*_running_codes([function])])
        for name, function in metrics.items()
    }
    return {**({} if model is None else {"the model": model_digest(model)}), **parts, **scores}


def part_digest(part: Part) -> str:
    """SHA-256 of the Part's class and settings."""
    settings = [(f.name, getattr(part, f.name)) for f in fields(part) if f.init]  # type: ignore[arg-type]
    plain = [f"{name}={value!r}" for name, value in settings if isinstance(value, PLAIN_TYPES)]
    others = [(name, value) for name, value in settings if not isinstance(value, PLAIN_TYPES)]
    texts = [
        text for name, value in others for text in [*setting_texts(name, value)] or [f"{name}={value!r}"]
    ]
    return _text_digest([*_running_codes([type(part)]), *plain, *texts])


def model_digest(module: nn.Module) -> str:
    """SHA-256 of the module's classes, structure and plain attributes, and of its parameters and buffers."""
    plain = [
        f"{name} {attribute}={value!r}"
        for name, layer in module.named_modules()
        for attribute, value in sorted(vars(layer).items())
        if not attribute.startswith("_") and attribute != "training" and isinstance(value, PLAIN_TYPES)
    ]
    learns = [f"{name} {p.requires_grad}" for name, p in module.named_parameters()]
    kinds = dict.fromkeys(type(layer) for layer in module.modules())
    tensors = {n: t for n, t in (*module.named_parameters(), *module.named_buffers()) if t.numel()}
    return _text_digest([repr(module), *_running_codes(kinds), *plain, *learns, digest(tensors)])


def _running_codes(kinds: Iterable[Any]) -> Iterable[str]:
    """The names of classes and functions, with the code of a user's own and of everything that these name."""
    for kind in kinds:
        yield getattr(kind, "__qualname__", type(kind).__qualname__)
        for own in getattr(kind, "__mro__", (kind,)):
            if own.__module__.partition(".")[0] in ("torch", "builtins", "abc", "typing", PACKAGE):
                continue
            yield running_code(own)
            yield from names_texts(own)


def _text_digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(MEMORY_ADDRESS.sub("", text) for text in texts).encode()).hexdigest()
