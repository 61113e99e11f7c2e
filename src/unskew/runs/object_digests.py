"""Digests of models, Parts and metrics that a program gives as objects, by which a resumed run notices
another one of the name.

A digest covers the source of a user's own class or function, and the values, functions and modules that it
names. Where a file was edited after Python had imported it, the source is not what Python runs, and the run
is refused (E112). Where there is no source, as in a notebook, what the functions were compiled to stands for
it.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
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
    """The functions in an entry of a class, without what wraps them."""
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
    """A plain value, an array or a tree of these; "" for anything else, of which nobody can say whether it is
    the same."""
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
    """What decides about what code does, without where in a file it stands."""
    constants = [code_text(one) if isinstance(one, CodeType) else value_text(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"


def source_of(kind: Any) -> str | None:
    """The source of a class or function; None where Python has none, as of what was typed into a notebook.

    Raises UsageError (E112) where the source is no longer what Python runs. Not asked of code that a tool
    rewrote while it was imported, as pytest does.
    """
    module = sys.modules.get(kind.__module__)
    file = Path(getattr(module, "__file__", None) or "")
    if type(getattr(module, "__loader__", None)) is SourceFileLoader and file.is_file():
        codes = _codes(file.read_bytes())
        # what exec made, say, for which Python 3.13 would take any lines of the file
        if codes and kind.__qualname__ not in codes:
            return None
        if not _matches_file(kind, codes):
            text = (
                f"'{kind.__qualname__}' is not what {file} says: one of them was changed after Python had"
                " imported the other"
            )
            mend = "start Python anew, or importlib.reload the module and make the object again"
            raise UsageError("E112", f"{text}; {mend}.")
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return None


def _matches_file(kind: Any, codes: Mapping[str, list[CodeType]]) -> bool:
    """codes: of the file by now, by their names; none where it is no Python any more."""
    entries = vars(kind).values() if inspect.isclass(kind) else [kind]
    for function in (f for entry in entries for f in functions_in(entry) if f.__module__ == kind.__module__):
        if function.__code__.co_filename.startswith("<"):  # what dataclasses and other decorators write
            continue
        if code_text(function.__code__) not in map(code_text, codes.get(function.__qualname__, [])):
            return False
    bodies = codes.get(kind.__qualname__, [])
    return not inspect.isclass(kind) or any(_has_constants(vars(kind), body) for body in bodies)


def _has_constants(attributes: Mapping[str, Any], body: CodeType) -> bool:
    """Whether a class has plain values that its body may give it."""
    return all(
        attributes[name] in values
        for name, values in _constants(body).items()
        if isinstance(attributes.get(name), SCALAR_TYPES[:-1])
    )


def _constants(body: CodeType) -> dict[str, list[Any]]:
    """The plain values that code may give each name; without names to which it also gives what it
    computes."""
    given: dict[str, list[Any]] = defaultdict(list)
    computed, before = set[str](), None
    for step in dis.get_instructions(body):
        if step.opname == "STORE_NAME" and before is not None and before.opname == "LOAD_CONST":
            given[step.argval].append(before.argval)
        elif step.opname == "STORE_NAME":
            computed.add(step.argval)
        before = step
    return {
        name: values for name, values in given.items() if name not in computed and not name.startswith("__")
    }


@lru_cache(32)
def _codes(source: bytes) -> dict[str, list[CodeType]]:
    """What a file's functions and classes would be compiled to, by their qualified names."""
    by_name: dict[str, list[CodeType]] = defaultdict(list)
    try:
        waiting = [SourceFileLoader("", "").source_to_code(source, "<file>")]  # never run
    except (SyntaxError, ValueError):
        return by_name
    while waiting:
        code = waiting.pop()
        by_name[code.co_qualname].append(code)
        waiting += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return by_name


_CELL_OPCODES, _GLOBAL_OPCODES = ("LOAD_DEREF", "LOAD_CLASSDEREF"), ("LOAD_GLOBAL", "LOAD_NAME")

_ADDING_METHODS = {"append", "extend", "insert", "setdefault", "update"}


def is_user_code(kind: Any) -> bool:
    """Whether a class, function or module is a user's own: neither this package's nor Python's nor
    installed."""
    name = kind.__name__ if isinstance(kind, ModuleType) else getattr(kind, "__module__", None) or ""
    root = name.partition(".")[0]
    if root in python_files.FOREIGN_MODULES:
        return False
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return "site-packages" not in file and "dist-packages" not in file


def names_texts(kind: Any) -> Iterator[str]:
    """What this class or function names, and what that names in turn, as texts that change when one of it
    does."""
    yield from _NameWalk().within(kind)


def setting_texts(name: str, value: Any) -> Iterator[str]:
    """What a setting of this name holds, and what that names in turn where it is a function or class of a
    user's own."""
    yield from _NameWalk().of_value(name, value)


class _NameWalk:
    """A walk through what code names. It knows where it has been, for functions may name each other."""

    def __init__(self) -> None:
        self._seen = set[int]()

    def within(self, kind: Any) -> Iterator[str]:
        """What a class or function of a user's own names, without its own text."""
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
        if function.__code__.co_filename == "<string>" and function.__name__.startswith(
            "__"
        ):  # what dataclasses write
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
                yield f"{name} {source_text(value)}"
                yield from self.within(value)
        elif text := value_text(value):
            yield f"{name}={text}"


def source_text(kind: Any) -> str:
    """The source of a class or function; where Python has none, what its functions were compiled to. Raises
    UsageError (E112) where the source is no longer what Python runs."""
    if (text := source_of(kind)) is not None:
        return text
    values = vars(kind).items() if inspect.isclass(kind) else [("", kind)]
    bodies = [f"{n}: {code_text(f.__code__)}" for n, v in values for f in functions_in(v)]
    plain = [f"{n}={value}" for n, v in values if not n.startswith("__") and (value := value_text(v))]
    return "\n".join((*bodies, *plain))


def _names_loaded(code: CodeType) -> list[str]:
    """The globals and enclosed variables that code reads, also in functions that it makes, each once."""
    names = [
        str(i.argval) for i in dis.get_instructions(code) if i.opname in (*_GLOBAL_OPCODES, *_CELL_OPCODES)
    ]
    inner = [name for one in code.co_consts if isinstance(one, CodeType) for name in _names_loaded(one)]
    return [*dict.fromkeys(names + inner)]


def _adds_entries(code: CodeType) -> bool:
    """Whether code puts something into a list or a dictionary, which may be a log that it keeps and does not
    read."""
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
    """Raises UsageError (E102) for what is no method, and says how to write what was meant."""
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
    """SHA-256 by what it is of: the model, each Part whose class is neither this package's nor in a file, and
    each metric."""
    theirs = [p for p in method.parts if not p.spelling and type(p).__module__.partition(".")[0] != PACKAGE]
    parts = {f"the Part '{p.name}'": part_digest(p) for p in theirs}
    scores = {
        f"the metric '{name}'": _text_digest([*_source_texts([function])])
        for name, function in metrics.items()
    }
    return {**({} if model is None else {"the model": model_digest(model)}), **parts, **scores}


def part_digest(part: Part) -> str:
    """SHA-256 of the Part's class, the source of the class where Python has it, and its settings."""
    settings = [(f.name, getattr(part, f.name)) for f in fields(part) if f.init]  # type: ignore[arg-type]
    plain = [f"{name}={value!r}" for name, value in settings if isinstance(value, PLAIN_TYPES)]
    others = [(name, value) for name, value in settings if not isinstance(value, PLAIN_TYPES)]
    texts = [
        text for name, value in others for text in [*setting_texts(name, value)] or [f"{name}={value!r}"]
    ]
    return _text_digest([*_source_texts([type(part)]), *plain, *texts])


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
    return _text_digest([repr(module), *_source_texts(kinds), *plain, *learns, digest(tensors)])


def _source_texts(kinds: Iterable[Any]) -> Iterable[str]:
    """The names of classes and functions, each with its source and with what that names where it is a user's
    own."""
    for kind in kinds:
        yield getattr(kind, "__qualname__", type(kind).__qualname__)
        for own in getattr(kind, "__mro__", (kind,)):
            if own.__module__.partition(".")[0] in ("torch", "builtins", "abc", "typing", PACKAGE):
                continue
            yield source_text(own)
            yield from names_texts(own)


def _text_digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(MEMORY_ADDRESS.sub("", text) for text in texts).encode()).hexdigest()
