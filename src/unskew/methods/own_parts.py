"""Parts from a user's own file, which a method names `file.py`, or `file.py:Class` where it defines several."""

from __future__ import annotations

import dataclasses
import inspect
from functools import lru_cache
from pathlib import Path

from unskew import own
from unskew.core.part import Part
from unskew.errors import UsageError, suggestion


def kind(file: str, name: str = "") -> type[Part]:
    """The file's class of this name, or its only Part. Raises UsageError: E111 for the file, E121 for what it defines."""
    parts = {k.__name__: k for k in kinds(file)}
    if name and name not in parts:
        raise UsageError("E121", f"{file} defines no Part '{name}'.{suggestion(name, parts)}")
    if not name and len(parts) > 1:
        raise UsageError("E121", f"{file} defines {' and '.join(parts)}; write {file}:{next(iter(parts))}.")
    return parts[name] if name else next(iter(parts.values()))


def kinds(file: str) -> tuple[type[Part], ...]:
    """All Parts that a file defines; the same classes for as long as it holds the same text."""
    return _kinds(file, own.digest(file) if Path(file).is_file() else "")


@lru_cache
def _kinds(file: str, digest: str) -> tuple[type[Part], ...]:
    loaded = own.module(file)
    parts = [k for k in vars(loaded).values() if inspect.isclass(k) and issubclass(k, Part)]
    own_parts = tuple(k for k in parts if k.__module__ == loaded.__name__ and k.name)
    if not own_parts:
        raise UsageError("E121", f"{file} defines no subclass of unskew.Part with a name, like name = 'mine'.")
    for k in own_parts:
        if not dataclasses.is_dataclass(k):
            raise UsageError("E121", f"{file}: write @dataclass(frozen=True) above class {k.__name__}.")
        k.spelling = f"{file}:{k.__name__}" if len(own_parts) > 1 else file
    return own_parts
