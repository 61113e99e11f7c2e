"""Command-line options made from annotated dataclasses, so that every option is described in one place.

A field `test_data: Annotated[str | None, "meaning"] = None` becomes `--test-data`, with its meaning, range, choices and
default in `--help`. Fields without a default are positional arguments.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer

from unskew import arguments, calls
from unskew.arguments import REQUIRED, Argument
from unskew.config import Settings
from unskew.errors import UsageError

T = TypeVar("T")
SETTINGS = tuple(a.name for a in arguments.of(Settings) if a.name not in ("method", "set"))
"""The settings that are options of their own; `method` is an argument, and `set` is written --set part.argument=value."""


@dataclass(frozen=True)
class Panel:
    """Stands in an annotation: the heading under which `--help` shows the option."""

    title: str


@dataclass(frozen=True)
class Positional:
    """Stands in an annotation: the value is written without an option's name, although it has a default."""


Command = Callable[..., None]


def with_options(own: type[T]) -> Callable[[Callable[[T], None]], Command]:
    """Make a command out of a function that takes one `own`: an option for each field of this dataclass."""

    def decorate(function: Callable[[T], None]) -> Command:
        def called(**values: Any) -> None:
            function(_built(own, values))

        return _as_command(called, function, [_parameter(argument) for argument in arguments.of(own)])

    return decorate


def with_settings(
    own: type[T], settings: Sequence[str] = SETTINGS
) -> Callable[[Callable[[T, dict[str, Any]], None]], Command]:
    """Make a command out of a function that takes one `own` and the settings that the user gave.

    It has an option for each field of the dataclass `own`, and one for each of these settings.
    """

    def decorate(function: Callable[[T, dict[str, Any]], None]) -> Command:
        chosen = [argument for argument in arguments.of(Settings) if argument.name in settings]
        parameters = [_parameter(argument) for argument in arguments.of(own)]
        parameters += [_parameter(argument, Panel("Settings")) for argument in chosen]

        def called(**values: Any) -> None:
            given = {argument.name: values.pop(argument.name) for argument in chosen}
            function(_built(own, values), {name: value for name, value in given.items() if value is not None})

        return _as_command(called, function, parameters)

    return decorate


def _built(kind: type[T], values: dict[str, Any]) -> T:
    """The dataclass with the values that the user gave; raises UsageError (E109) for one that does not fit."""
    given = {name: value for name, value in values.items() if value is not None}
    return kind(**arguments.check(kind, given, "the command", "E109"))


def _as_command(called: Command, function: Callable[..., None], parameters: list[inspect.Parameter]) -> Command:
    """`called`, which looks to typer as if it had these parameters, with the name and docstring of `function`."""
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__doc__, called.__name__ = function.__doc__, function.__name__
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    return called


def _parameter(argument: Argument, panel: Panel | None = None) -> inspect.Parameter:
    """How typer is told of an option. The default is None, so that what the user gave can be told from what they left out."""
    beside = get_args(argument.hint)[1:] if get_origin(argument.hint) is Annotated else ()
    panel = next((item for item in beside if isinstance(item, Panel)), panel)
    shown = {"help": help_text(argument), "show_default": False, "rich_help_panel": panel.title if panel else None}
    kind = _plain(argument.hint)
    required = argument.default is REQUIRED
    if required or any(isinstance(item, Positional) for item in beside):
        default, kind, info = (inspect.Parameter.empty if required else None), kind, typer.Argument(**shown)
    else:
        default, info = None, typer.Option(_flag(argument), **shown)
    annotation = Annotated[kind if required else kind | None, info]
    return inspect.Parameter(argument.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _flag(argument: Argument) -> str:
    """`--drop-last`; `--clip/--no-clip` where it is on unless switched off."""
    name = argument.name.replace("_", "-")
    return f"--{name}/--no-{name}" if argument.default is True else f"--{name}"


def help_text(argument: Argument) -> str:
    """The meaning, then choices or range, and default in brackets, escaped so that rich does not read them as markup."""
    facts = ["|".join(map(str, argument.choices)) or argument.range]
    if argument.default is True:
        facts.append("default: on")
    elif argument.default is not False and argument.default not in (REQUIRED, None, "", (), {}):
        facts.append(f"default: {argument.default}")
    brackets = "; ".join(filter(None, facts))
    return (argument.meaning + (f" [{brackets}]" if brackets else "")).replace("[", "\\[")


def _plain(hint: Any) -> Any:
    """The type that typer reads: without Annotated and None; one value of a tuple each time an option is given."""
    if get_origin(hint) is Annotated:
        return _plain(get_args(hint)[0])
    if get_origin(hint) in (typing.Union, types.UnionType):
        return _plain(next(a for a in get_args(hint) if a is not type(None)))
    if get_origin(hint) is Literal:
        return str
    if get_origin(hint) is tuple:
        return list[_plain(get_args(hint)[0])]  # type: ignore[misc]
    return hint if hint in (bool, int, float, str, Path) else str


def parts_arguments(pairs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The arguments of Parts: `flea.alpha=0.1` -> {"flea": {"alpha": 0.1}}. Raises UsageError (E102)."""
    by_part: dict[str, dict[str, Any]] = {}
    for pair in pairs:
        path, equals, value = pair.partition("=")
        part, dot, argument = path.partition(".")
        if not (equals and dot and part and argument):
            raise UsageError("E102", f"--set takes part.argument=value, such as flea.alpha=0.1; got '{pair}'.")
        by_part.setdefault(part.strip().lower(), {})[argument.strip()] = calls.parse_value(value, path, "E102")
    return by_part


def set_over(before: Mapping[str, Mapping[str, Any]], pairs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The arguments of Parts as a file gives them, with those of `--set` over them, one by one. Raises UsageError (E102)."""
    by_part = {part: dict(values) for part, values in before.items()}
    for part, values in parts_arguments(pairs).items():
        by_part[part] = {**by_part.get(part, {}), **values}
    return by_part
