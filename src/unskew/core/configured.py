"""What makes a frozen dataclass a Part's settings: they are checked by their annotations, and written as users write them."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from types import FunctionType
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor

from unskew import arguments, calls
from unskew.core.written import check_frozen
from unskew.errors import UsageError

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""Where Python says an object lies in memory, which differs from process to process."""


class Configured:
    """Settings that are checked when an object is made, and its text as users write it. name, spelling: see `Part`."""

    name: ClassVar[str]
    spelling: ClassVar[str]

    def __new__(cls, *_values: Any, **settings: Any) -> Self:
        """Raises UsageError: E102 for a setting that the class does not have, E121 for a class that is no frozen dataclass."""
        check_frozen(cls)
        known = inspect.signature(cls.__init__).parameters
        unknown = {name: value for name, value in settings.items() if name not in known}
        if unknown and not any(p.kind is p.VAR_KEYWORD for p in known.values()):
            arguments.check(cls, unknown, cls.__name__, "E102")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Checks every setting against its annotation and converts it to its type, in Python as on the command line.
        A setting that has no effect without another one (`With`) is refused.

        Raises UsageError (E102). A subclass that checks more, such as how two settings go together, calls this first.
        """
        settings = {f.name: getattr(self, f.name) for f in fields(self) if f.init}  # type: ignore[arg-type]
        for name, value in arguments.check(type(self), settings, type(self).__name__, "E102").items():
            object.__setattr__(self, name, value)
        if reason := arguments.idle(type(self), {name: getattr(self, name) for name in settings}):
            raise UsageError("E102", f"{type(self).__name__}: {reason}")

    def __str__(self) -> str:
        """As users write it, with the settings that are not the defaults: `fedprox(mu=0.1)`."""
        settings = [
            f"{f.name}={_in_text(getattr(self, f.name))}"
            for f in fields(self)  # type: ignore[arg-type]
            if f.init and not _equal(getattr(self, f.name), arguments.default_of(f))
        ]
        return (self.spelling or self.name) + (f"({', '.join(settings)})" if settings else "")


def _equal(value: Any, default: Any) -> bool:
    """Whether a setting has its default. Arrays compare number by number, which is no answer: these count as set."""
    try:
        return value is default or bool(value == default)
    except (ValueError, RuntimeError, TypeError):
        return False


def _in_text(value: Any) -> str:
    """A setting's value, on one line and the same in every process: of a tensor its shape, of a function its name. Their
    content and code are in the digest by which a run knows a Part that was given in Python."""
    if isinstance(value, Tensor | np.ndarray):
        return f"{type(value).__name__.lower()} {list(value.shape)}"
    if isinstance(value, FunctionType):
        return value.__name__
    return calls.written_value(value) if isinstance(value, str) else ADDRESS.sub("", str(value))
