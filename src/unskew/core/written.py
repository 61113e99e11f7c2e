"""How a user's own Part is written: hooks that Python takes and the engine would never call, or call wrongly.

Told when the class is made or when a Part of it goes into a Method, in one sentence (E121).
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from types import CodeType
from typing import Any

from torch import Tensor, nn

from unskew.core.trip import Trip
from unskew.errors import UsageError, suggestion

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
TAKEN = ("w", "kept", "slices", "previous")
"""What checkpoints and private state call their own."""
SWITCHES = {"merge": "merges", "personalise": "personal", "protect": "protects", "sample_grad": "samples_apart"}
"""Hooks that are only called where the Part says so, with how it says so."""
TRIPS = {"when": ("t", "T"), "client": ("w", "c"), "server": ("w", "s", "ups", "fed"), "shares": ("fed",)}
"""The functions of a trip, with what they are called with."""
_PLAIN = (bool, int, float, str, tuple, dict)
_OF_ALL = ("Part", "Declared", "Configured", "object")


def check_class(kind: type, hooks: Mapping[str, Any], known: Collection[str]) -> None:
    """Raises UsageError (E121) for hooks and attributes in the class's body that the engine would not find or could not call.

    hooks: what Part defines, by name. known: whatever else a Part may define.
    """
    body = dict(vars(kind))
    referred = {word for value in body.values() for word in _words(value)}
    fields = body.get("__annotations__", {})
    for name, value in body.items():
        if name in hooks:
            _check_hook(kind, name, _function(value), hooks[name])
        elif not name.startswith("_") and name not in known and name not in referred and name not in fields:
            alike = hooks if inspect.isfunction(_function(value)) else known if isinstance(value, _PLAIN) else ()
            if near := suggestion(name, alike):
                what = "hook" if alike is hooks else "attribute of a Part"
                text = f"class {kind.__name__} defines '{name}', which is no {what} and which it does not use itself"
                raise UsageError("E121", f"{text}.{near} A name of your own begins with '_'.")


def _check_hook(kind: type, name: str, function: Any, ours: Any) -> None:
    if not inspect.isfunction(function):
        return
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        what = "async" if inspect.iscoroutinefunction(function) else "a generator (it says yield)"
        raise UsageError("E121", f"the hook `{name}` of class {kind.__name__} is {what}; write a plain function.")
    expected = [p.name for p in inspect.signature(ours).parameters.values()][1:]
    own = list(inspect.signature(function).parameters.values())
    bare = isinstance(vars(kind)[name], staticmethod)
    try:
        inspect.signature(function).bind(*(() if bare else ("self",)), *expected)
    except TypeError:
        takes = ", ".join(p.name for p in own)
        text = f"the hook `{name}` of class {kind.__name__} takes ({takes})"
        raise UsageError("E121", f"{text}, and is called with ({', '.join(['self', *expected])}).") from None
    given = [p.name for p in own[0 if bare else 1 :]]
    if given != expected and sorted(given) == sorted(expected):
        text = f"the hook `{name}` of class {kind.__name__} takes ({', '.join(given)})"
        raise UsageError("E121", f"{text} in another order than it is called with ({', '.join(expected)}).")


def check_part(part: Any, overridden: Collection[str]) -> None:
    """Raises UsageError (E121) for a Part that a Method cannot use as it says of itself. overridden: its own hooks."""
    name, kind = part.name, type(part)
    if not NAME.fullmatch(name) or name in TAKEN:
        text = f"class {kind.__name__} is called {name!r}" if name else f"class {kind.__name__} has no name"
        raise UsageError("E121", f"{text}; give it one of letters, digits and '_', like name = 'mine'.")
    mine = [k for k in kind.__mro__ if k.__name__ not in _OF_ALL]
    for hook, switch in SWITCHES.items():
        if hook in overridden and not getattr(part, switch) and not any(switch in vars(k) for k in mine):
            raise UsageError("E121", f"'{name}' defines `{hook}`, which is only called with {switch} = True; set it.")
        if hook not in overridden and hook in ("merge", "protect") and getattr(part, switch):
            raise UsageError("E121", f"'{name}' says {switch} = True and defines no `{hook}`.")
    if not _listed(part, "taps", str, "('cut',)") and "tap" in overridden and not any("taps" in vars(k) for k in mine):
        raise UsageError("E121", f"'{name}' defines `tap`, which runs at the cuts in `taps`; set it, like ('cut',).")
    if _listed(part, "trips", Trip, "(Trip(...),)"):
        _check_trips(part)
    for trip in part.trips:
        if trip.reads is not None and not _are_names(trip.reads):
            text = f"'{name}' has a trip with reads={trip.reads!r}"
            raise UsageError(
                "E121", f"{text}; name the leaves of its slice in a tuple, like ('mean',), or () for none."
            )
    for place, value in {n: v for k in (*reversed(mine), part) for n, v in vars(k).items()}.items():
        held = value.parameters() if isinstance(value, nn.Module) else [value]
        if any(isinstance(one, Tensor) and one.requires_grad for one in held):
            text = f"'{name}' keeps weights on itself ('{place}'), which nobody trains, sends or saves"
            raise UsageError("E121", f"{text}; name them in the hook `weights`, or freeze them: requires_grad_(False).")


def _are_names(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(one, str) for one in value)


def _check_trips(part: Any) -> None:
    """Raises UsageError (E121) for functions of its trips that take other arguments than they are called with."""
    for trip in part.trips:
        for name, given in TRIPS.items():
            function = getattr(trip, name)
            try:
                inspect.signature(function).bind(*given)
            except TypeError:
                text = f"a trip of '{part.name}' has a `{name}` that takes {_taken(function)}"
                raise UsageError("E121", f"{text}, and is called with ({', '.join(given)}).") from None
            except ValueError:  # of what is written in C nobody knows
                continue


def _taken(function: Any) -> str:
    return str(inspect.signature(function)) if callable(function) else "no arguments, as it is no function"


def _listed(part: Any, attribute: str, of: type, like: str) -> int:
    """How many things stand in a list that a Part gives. Raises UsageError (E121) if it is none."""
    value = getattr(part, attribute)
    if not isinstance(value, tuple | list) or not all(isinstance(one, of) for one in value):
        how = "a property (@property)" if callable(value) and not isinstance(value, Trip) else like
        raise UsageError("E121", f"'{part.name}': {attribute} has to be a tuple, like {like}; write {how}.")
    return len(value)


def check_frozen(kind: type) -> None:
    """Raises UsageError (E121) for a class without @dataclass(frozen=True), whose settings would be lost or could change."""
    if kind.__module__.partition(".")[0] == "unskew":
        return
    params = getattr(kind, "__dataclass_params__", None)
    own = {n for n, text in vars(kind).get("__annotations__", {}).items() if "ClassVar" not in str(text)}
    known = {f.name for f in dataclasses.fields(kind)} if params else set[str]()
    if params is None or not params.frozen or own - known:
        raise UsageError("E121", f"write @dataclass(frozen=True) above class {kind.__name__}.")


def _function(value: Any) -> Any:
    return value.__func__ if isinstance(value, staticmethod | classmethod) else value


def _words(value: Any) -> Iterator[str]:
    """The names that a function reads, also those inside it."""
    value = getattr(_function(value), "fget", None) or _function(value)
    codes = [code] if isinstance(code := getattr(value, "__code__", None), CodeType) else []
    while codes:
        code = codes.pop()
        yield from code.co_names
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
