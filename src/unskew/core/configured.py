"""What makes a frozen dataclass a Part's settings: they are checked by their annotations, and written as users write them."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any, ClassVar, Self

from unskew import arguments
from unskew.core.written import check_frozen
from unskew.errors import UsageError


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
            f"{f.name}={getattr(self, f.name)}"
            for f in fields(self)  # type: ignore[arg-type]
            if f.init and getattr(self, f.name) != f.default
        ]
        return (self.spelling or self.name) + (f"({', '.join(settings)})" if settings else "")
