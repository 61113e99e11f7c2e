"""Command-line options made from the fields of Settings, so that a setting is described in one place."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
import yaml

from unskew.config import FIELDS, Settings
from unskew.errors import UsageError

LEFT_OUT = ("method", "set")


def with_settings(leave_out: Sequence[str] = ()) -> Callable[[Callable], Callable]:
    """Give a command one option per field of Settings; it receives those the user gave as `options`."""

    def decorate(command: Callable) -> Callable:
        hints = typing.get_type_hints(Settings, include_extras=True)
        shown = [n for n in FIELDS if n not in LEFT_OUT and n not in leave_out]
        own = [p for n, p in inspect.signature(command, eval_str=True).parameters.items() if n != "options"]
        parameters = [*own, *(_parameter(n, hints[n]) for n in shown)]

        def called(**values: Any) -> Any:
            given = {n: values.pop(n) for n in shown}
            return command(**values, options={n: v for n, v in given.items() if v is not None})

        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__doc__, called.__name__ = command.__doc__, command.__name__
        called.__annotations__ = {p.name: p.annotation for p in parameters}
        return called

    return decorate


def _parameter(name: str, hint: Any) -> inspect.Parameter:
    field = FIELDS[name]
    kind = _plain(hint)
    flag = f"--{name.replace('_', '-')}"
    default = field.default
    text = field.metadata["help"] + ("" if default is None or default is False else f" [default: {default}]")
    if get_origin(kind) is Literal:
        kind, text = str, f"{text} [{'|'.join(get_args(kind))}]"
    option = typer.Option(flag, help=text, show_default=False, rich_help_panel="Settings")
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _plain(hint: Any) -> Any:
    """The bare type under Annotated and Optional."""
    if get_origin(hint) is Annotated:
        return _plain(get_args(hint)[0])
    if get_origin(hint) in (typing.Union, types.UnionType):
        return _plain(next(a for a in get_args(hint) if a is not type(None)))
    return hint


def parts_arguments(pairs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`flea.alpha=0.1` -> {"flea": {"alpha": 0.1}}."""
    found: dict[str, dict[str, Any]] = {}
    for pair in pairs:
        path, equals, value = pair.partition("=")
        part, dot, argument = path.partition(".")
        if not (equals and dot and part and argument):
            raise UsageError("E102", f"--set takes part.argument=value, like flea.alpha=0.1; got '{pair}'.")
        found.setdefault(part.strip().lower(), {})[argument.strip()] = yaml.safe_load(value)
    return found
