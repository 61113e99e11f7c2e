"""The callbacks that a program gives, looked at before anything trains: hooks that Python takes and nobody would call."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from unskew.core.written import check_class
from unskew.engine.callbacks.callback import Callback
from unskew.errors import UsageError, excerpt

HOOKS = {n: hook for n, hook in vars(Callback).items() if inspect.isfunction(hook) and not n.startswith("_")}
"""By name, in the order in which they stand there."""


def checked(callbacks: Any) -> tuple[Callback, ...]:
    """The callbacks.

    Raises UsageError: E109 for what is none, and for one whose hooks nobody would call; E121 for a hook that is misspelt or
    cannot be called.
    """
    if isinstance(callbacks, Callback):
        raise UsageError("E109", f"callbacks take a list; write callbacks=[{type(callbacks).__name__}(...)].")
    if not isinstance(callbacks, Iterable):
        text = f"callbacks take a list of unskew.Callback objects, and {excerpt(callbacks, 40)} is none"
        raise UsageError("E109", f"{text}; write callbacks=[MyCallback()], or leave it out.")
    listed = tuple(callbacks)
    for callback in listed:
        if not isinstance(callback, Callback):
            what = f"{callback.__name__} is a class; write {callback.__name__}()" if isinstance(callback, type) else ""
            raise UsageError("E109", f"callbacks take unskew.Callback objects: {what or excerpt(callback)}.")
        _check_hooks(callback)
    return listed


def _check_hooks(callback: Callback) -> None:
    """Raises UsageError as `checked` does."""
    kinds = type(callback).__mro__
    for kind in kinds[: kinds.index(Callback)]:
        if kind.__module__.partition(".")[0] != "unskew":
            check_class(kind, HOOKS, ())
    if not any(getattr(callback, hook) != getattr(Callback, hook).__get__(callback) for hook in HOOKS):
        text = f"the callback {callback.name} overrides none of {', '.join(HOOKS)}, so nothing of it would be called"
        raise UsageError("E109", f"{text}; name a method of it as one of these.")
