"""Digests of what a program gives as an object, by which a resumed run notices another model or Part of the same name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from torch import nn

from unskew.core.configured import ADDRESS
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.engine.disk.state import digest
from unskew.engine.named import named, of_value, text_of
from unskew.errors import UsageError, excerpt
from unskew.tasks.metrics import Functions

PLAIN = (bool, int, float, str, tuple, type(None))
OURS = "unskew"


def check_method(method: object) -> None:
    """Raises UsageError (E102) for what is no method, and says how to write what was meant."""
    if isinstance(method, str | Method | Part):
        return
    if isinstance(method, type) and issubclass(method, Part):
        text = f"{method.__name__} is a class, not a Part; write {method.__name__}()."
    elif isinstance(method, list | tuple):
        text = "a list of methods was given, and run trains one; use unskew.compare([...]), or join Parts by '+'."
    elif isinstance(method, nn.Module):
        text = f"a {type(method).__name__} was given as method; give it as model: run('fedavg', data, model=...)."
    else:
        text = f"a method is a text, a Part or a Method, not {excerpt(method)}."
    raise UsageError("E102", text)


def digests(method: Method, model: nn.Module | None, metrics: Functions) -> dict[str, str]:
    """SHA-256 by what it is of: the model, each Part whose class is neither this package's nor in a file, and each metric."""
    theirs = [p for p in method.parts if not p.spelling and type(p).__module__.partition(".")[0] != OURS]
    parts = {f"the Part '{p.name}'": of_part(p) for p in theirs}
    scores = {f"the metric '{name}'": _sha([*_sources([function])]) for name, function in metrics.items()}
    return {**({} if model is None else {"the model": of_model(model)}), **parts, **scores}


def of_part(part: Part) -> str:
    """SHA-256 of the Part's class, the source of the class where Python has it, and its settings."""
    settings = [(f.name, getattr(part, f.name)) for f in fields(part) if f.init]  # type: ignore[arg-type]
    plain = [f"{name}={value!r}" for name, value in settings if isinstance(value, PLAIN)]
    others = [(name, value) for name, value in settings if not isinstance(value, PLAIN)]
    texts = [text for name, value in others for text in [*of_value(name, value)] or [f"{name}={value!r}"]]
    return _sha([*_sources([type(part)]), *plain, *texts])


def of_model(module: nn.Module) -> str:
    """SHA-256 of the module's classes, structure and plain attributes, and of its parameters and buffers."""
    plain = [
        f"{name} {attribute}={value!r}"
        for name, layer in module.named_modules()
        for attribute, value in sorted(vars(layer).items())
        if not attribute.startswith("_") and attribute != "training" and isinstance(value, PLAIN)
    ]
    learns = [f"{name} {p.requires_grad}" for name, p in module.named_parameters()]
    kinds = dict.fromkeys(type(layer) for layer in module.modules())
    tensors = {n: t for n, t in (*module.named_parameters(), *module.named_buffers()) if t.numel()}
    return _sha([repr(module), *_sources(kinds), *plain, *learns, digest(tensors)])


def _sources(kinds: Iterable[Any]) -> Iterable[str]:
    """The names of classes and functions, each with its source and with what that names where it is a user's own."""
    for kind in kinds:
        yield getattr(kind, "__qualname__", type(kind).__qualname__)
        for own in getattr(kind, "__mro__", (kind,)):
            if own.__module__.partition(".")[0] in ("torch", "builtins", "abc", "typing", OURS):
                continue
            yield text_of(own)
            yield from named(own)


def _sha(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(ADDRESS.sub("", text) for text in texts).encode()).hexdigest()
