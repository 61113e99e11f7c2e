"""Digests of models, Parts and metrics that are passed as objects; a resumed run uses them to detect a
change.

A digest covers the compiled code of a user's class or function, and the values, functions and modules that it
names, so that it is of what runs; another version of Python compiles otherwise.
"""

from __future__ import annotations

import dis
import hashlib
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cached_property, partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

from unskew.core.description import MEMORY_ADDRESS
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.user_parts import names_in
from unskew.errors import UsageError, excerpt
from unskew.models import ModelFunction
from unskew.records.checkpoints import digest
from unskew.system import python_files
from unskew.tasks.metrics import Functions

SCALAR_TYPES = (bool, int, float, complex, str, bytes, type(None))
_ADDING_METHODS = {"append", "extend", "insert", "setdefault", "update"}


def texts_of(value: Any, seen: set[int] | None = None) -> Iterator[str]:
    """Texts of a value and of everything that it names, which change when one of these changes. Nothing is
    said of objects that cannot be compared. seen: objects that need no further text, because functions may
    name each other."""
    seen = set() if seen is None else seen
    if isinstance(value, SCALAR_TYPES):
        yield repr(value)
    elif isinstance(value, Tensor | np.ndarray):
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        yield f"{array.dtype}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}"
    elif isinstance(value, Mapping):
        yield from (f"{key}: {text}" for key, v in value.items() for text in texts_of(v, seen))
    elif isinstance(value, list | tuple):
        yield from (text for v in value for text in texts_of(v, seen))
    elif isinstance(value, set | frozenset):
        yield str(sorted("".join(texts_of(v, seen)) for v in value))
    elif isinstance(value, CodeType):
        yield f"{value.co_code.hex()} {value.co_names} {value.co_varnames}"
        yield from texts_of(value.co_consts, seen)
    elif isinstance(value, staticmethod | classmethod):
        yield from texts_of(value.__func__, seen)
    elif isinstance(value, property | cached_property | partial):
        parts = ("fget", "fset", "func", "args", "keywords")
        yield from texts_of([getattr(value, part, None) for part in parts], seen)
    elif isinstance(value, ModuleType):
        if (file := getattr(value, "__file__", None)) and is_user_code(value):
            yield python_files.digest(file)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from texts_of({f.name: getattr(value, f.name) for f in fields(value)}, seen)
    elif (inspect.isclass(value) or callable(value)) and id(value) not in seen and is_user_code(value):
        seen.add(id(value))
        yield from _texts_of_code(inspect.unwrap(value), seen)


def _texts_of_code(kind: Any, seen: set[int]) -> Iterator[str]:
    """Texts of a user's class or function, as it runs: its file may have been edited since the import."""
    if inspect.isclass(kind):
        for name, value in vars(kind).items():
            generated = getattr(getattr(value, "__code__", None), "co_filename", "") == "<string>"
            if not generated and (callable(value) or not name.startswith("__")):  # by dataclass
                yield from (f"{name}: {text}" for text in texts_of(value, seen))
    elif isinstance(kind, FunctionType):
        yield from texts_of(kind.__code__, seen)
        named = {n: kind.__globals__[n] for n in sorted({*names_in(kind.__code__)}) if n in kind.__globals__}
        for name, value in (named | dict(inspect.getclosurevars(kind).nonlocals)).items():
            # a list or dictionary to which the function adds may be a log that it never reads
            if not (isinstance(value, list | dict | set) and _adds_entries(kind.__code__)):
                yield from (f"{name}={text}" for text in texts_of(value, seen))


def is_user_code(kind: Any) -> bool:
    """Whether a class, function or module is the user's, and not from this package, Python or an installed
    package."""
    name = kind.__name__ if isinstance(kind, ModuleType) else getattr(kind, "__module__", None) or ""
    if name.partition(".")[0] in python_files.FOREIGN_MODULES:
        return False
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return name == "__main__" or not any(folder in file for folder in ("site-packages", "dist-packages"))


def _adds_entries(code: CodeType) -> bool:
    """Whether code adds entries to a list or dictionary."""
    puts = dis.opmap["STORE_SUBSCR"] in code.co_code[::2]
    return puts or bool(_ADDING_METHODS & {*names_in(code)})


def check_method(method: object) -> None:
    """Raises UsageError (E102) for an object that is no method, with the likely spelling."""
    if isinstance(method, str | Method | Part):
        return
    text = f"a method is a text, a Part or a Method, not {excerpt(method)}."
    if isinstance(method, type) and issubclass(method, Part):
        text = f"{method.__name__} is a class, not a Part; write {method.__name__}()."
    elif isinstance(method, list | tuple):
        text = "a list of methods was given; use unskew.compare([...]), or join Parts by '+'."
    elif isinstance(method, nn.Module):
        text = f"a {type(method).__name__} was given as method; give it as model: run(..., model=...)."
    raise UsageError("E102", text)


def object_digests(
    method: Method, model: nn.Module | ModelFunction | None, metrics: Functions
) -> dict[str, str]:
    """SHA-256 of the model, of each Part from neither this package nor a file, and of each metric, by
    description."""
    digests = {} if model is None else {"the model": model_digest(model)}
    theirs = [p for p in method.parts if not p.spelling and type(p).__module__.partition(".")[0] != "unskew"]
    digests |= {f"the Part '{p.name}'": part_digest(p) for p in theirs}
    return digests | {f"the function '{n}'": _text_digest(_code_of(f)) for n, f in metrics.items()}


def part_digest(part: Part) -> str:
    """SHA-256 of the Part's class and settings."""
    settings = {f.name: getattr(part, f.name) for f in fields(part) if f.init}  # type: ignore[arg-type]
    texts = (f"{n}={[*texts_of(value)] or repr(value)}" for n, value in settings.items())
    return _text_digest([*_code_of(type(part)), *texts])


def model_digest(module: nn.Module | ModelFunction) -> str:
    """SHA-256 of the module's classes, structure and plain attributes, and of its parameters and buffers; of
    a function of its code."""
    if not isinstance(module, nn.Module):
        return _text_digest(texts_of(module))
    plain = [
        f"{name} {attribute}={value!r}"
        for name, layer in module.named_modules()
        for attribute, value in sorted(vars(layer).items())
        if not attribute.startswith("_")
        and attribute != "training"
        and isinstance(value, (*SCALAR_TYPES, tuple))
    ]
    learns = [f"{name} {p.requires_grad}" for name, p in module.named_parameters()]
    kinds = dict.fromkeys(type(layer) for layer in module.modules())
    code = [text for kind in kinds for text in _code_of(kind)]
    tensors = {n: t for n, t in (*module.named_parameters(), *module.named_buffers()) if t.numel()}
    return _text_digest([repr(module), *code, *plain, *learns, digest(tensors)])


def _code_of(kind: Any) -> list[str]:
    """The name of a class or function, with the code of a user's own classes and of what it names."""
    own = [k for k in getattr(kind, "__mro__", (kind,)) if k is not object and is_user_code(k)]
    seen = set[int]()
    return [
        getattr(kind, "__qualname__", type(kind).__qualname__),
        *(t for k in own for t in texts_of(k, seen)),
    ]


def _text_digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(MEMORY_ADDRESS.sub("", text) for text in texts).encode()).hexdigest()
