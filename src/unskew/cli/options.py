"""Command-line options from annotated dataclasses, so that every option is described in one place.

A field `test_data: Annotated[str | None, "meaning"] = None` becomes `--test-data`, with its meaning, range,
choices and default in `--help`. Fields without a default are positional arguments. Some mistakes, such as a
column that is written as an option, are detected before parsing.
"""

from __future__ import annotations

import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from unskew.cli import completion
from unskew.cli.terminal import plain_output
from unskew.config import FIELDS, OPTIONS, Settings
from unskew.errors import UnskewError, UsageError, suggestion
from unskew.formats import arguments, calls
from unskew.formats.arguments import REQUIRED, Argument

if TYPE_CHECKING:
    from unskew.results import PublishedModel, Result, SitePredictor

COLUMN_ARGUMENTS = {"run": ("site", "label", "target", "group"), "compare": ("site", "label", "group")}
"""The arguments of tables, by command; they are written in brackets after the path, not as options."""


class Command(TyperCommand):
    """A command whose output has no control characters; its help lists further settings with --all."""

    @property
    def further(self) -> dict[str, Argument]:
        """The arguments that have no option of their own, by name."""
        return getattr(self.callback, "further", {})

    def get_params(self, ctx: Any) -> Any:
        return _without_flag_types(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if self.further and "--all" in args:
            ctx.meta["all"] = True
            args = ["--help"]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        if ctx.meta.get("all"):
            _print_further(self.further)

    def invoke(self, ctx: Any) -> Any:
        with plain_output():
            return super().invoke(ctx)


def _print_further(further: Mapping[str, Argument]) -> None:
    """Print the settings that have no option of their own, as `--help` prints options."""
    from rich.console import Console
    from rich.panel import Panel as Frame
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    for name, argument in further.items():
        table.add_row(f"[bold cyan]{name}[/]", help_text(argument))
    title = "Further settings: --set NAME=VALUE, or NAME: VALUE in YAML"
    Console().print(Frame(table, title=title, title_align="left", border_style="dim"))


def _without_flag_types(params: list[Any]) -> list[Any]:
    """The parameters, flags without the type <bool>, because they take no value."""
    for flag in (p for p in params if getattr(p, "is_flag", False)):
        flag.metavar = ""
    return params


class Commands(TyperGroup):
    """The group of commands; it checks the words of the command line before parsing."""

    def get_params(self, ctx: Any) -> Any:
        return _without_flag_types(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        command = self.commands.get(args[0]) if args else None
        known = (
            {name for p in command.get_params(ctx) for name in (*p.opts, *p.secondary_opts)}
            if command
            else set()
        )
        check_words(args, known, getattr(command, "further", {}))
        return super().parse_args(ctx, args)


def check_words(args: Sequence[str], known: Collection[str], further: Mapping[str, Argument]) -> None:
    """Raises UsageError (E109) for a column, a further setting or an argument of the method as an option, and
    for --tune without a number. known: the options of the command."""
    command, given = (args[0], list(args[1:])) if args else ("", [])
    if "--" in given:
        given = given[: given.index("--")]
    options = {
        _option_name(text): _option_value(given, i) for i, text in enumerate(given) if text.startswith("--")
    }
    columns = [name for name in COLUMN_ARGUMENTS.get(command, ()) if name in options]
    if columns and "on" not in options:
        raise UsageError("E109", _column_problem(command, columns, options))
    for option, value in options.items() if command in COLUMN_ARGUMENTS else ():
        name = option.replace("-", "_")
        if name.removeprefix("no_") in further:
            pair = f"{name.removeprefix('no_')}={'false' if name.startswith('no_') else value or 'VALUE'}"
            raise UsageError("E109", f"--{option} is no option of unskew {command}; write --set {pair}.")
        if f"--{option}" not in known and (part := _part_with(name, given)):
            text = f'arguments of a method stand in brackets: "{part}({name}={value or "VALUE"})"'
            raise UsageError("E109", f"--{option} is no option of unskew {command}; {text}.")
    if command == "compare" and "tune" in options and not re.fullmatch(r"[+-]?\d+", options["tune"]):
        got = f"got {options['tune']!r}" if options["tune"] else "none was given"
        text = "--tune takes a number, how many settings of every method are tried first"
        raise UsageError("E109", f"{text}, and {got}; write --tune 8, say.")


def _part_with(argument: str, words: Sequence[str]) -> str:
    """The name of the Part that has this argument, among the methods at the beginning of the words; "" if
    none has."""
    from unskew.methods import registry

    for word in takewhile(lambda word: not word.startswith("-"), words):
        with suppress(UnskewError):
            for part in registry.parse(word).parts:
                if argument in {a.name for a in arguments.of(type(part))}:
                    return part.name
    return ""


def _column_problem(command: str, names: Sequence[str], options: dict[str, str]) -> str:
    path = options.get("data", "").partition("(")[0] or "table.csv"
    inside = ",".join(f"{name}={options[name] or 'COLUMN'}" for name in names)
    written = " and ".join(f"--{name}" for name in names)
    which = "is no option" if len(names) == 1 else "are no options"
    return (
        f"{written} {which} of unskew {command}: columns are named behind the table's path, --data"
        f' "{path}({inside})".'
    )


def _option_name(text: str) -> str:
    """The name of an option, such as `tune` for `--tune=8`."""
    return text[2:].partition("=")[0].lower().replace("_", "-")


def _option_value(given: Sequence[str], place: int) -> str:
    """The value of the option at this place; "" if it has none."""
    _, equals, value = given[place].partition("=")
    if equals:
        return value
    after = given[place + 1 : place + 2]
    return after[0] if after and not after[0].startswith("--") else ""


T = TypeVar("T")
SETTINGS = tuple(a.name for a in arguments.of(Settings) if a.name not in ("method", "set"))
"""The settings that are options. `method` is an argument; `set` is written --set part.argument=value."""


@dataclass(frozen=True)
class Panel:
    """In an annotation: the heading of the option in `--help`."""

    title: str


@dataclass(frozen=True)
class Further:
    """In an annotation: the option is written --set NAME=VALUE."""


@dataclass(frozen=True)
class Positional:
    """In an annotation: the value is positional although it has a default."""


Function = Callable[..., None]


def with_options(own: type[T]) -> Callable[[Callable[[T], None]], Function]:
    """A decorator that makes a command from a function of one `own` instance; each field becomes an
    option."""

    def decorate(function: Callable[[T], None]) -> Function:
        def called(**values: Any) -> None:
            function(_build(own, values))

        return _as_command(called, function, [_parameter(argument) for argument in arguments.of(own)])

    return decorate


def with_settings(
    own: type[T], settings: Sequence[str] = SETTINGS
) -> Callable[[Callable[[T, dict[str, Any]], None]], Function]:
    """A decorator that makes a command from a function of an `own` instance and the settings of the command
    line.

    The command has an option for each field of the dataclass `own` that is not Further, and for each name in
    `settings` that is among config.OPTIONS, or all of them if `own` has no field `set`. The others are read
    from --set.
    """

    def decorate(function: Callable[[T, dict[str, Any]], None]) -> Function:
        chosen = {a.name: a for a in arguments.of(Settings) if a.name in settings}
        fields = {a.name: a for a in arguments.of(own)}
        further = {name: a for name, a in fields.items() if Further() in _annotations(a)}
        if "set" in fields:
            further |= {name: a for name, a in chosen.items() if name not in OPTIONS}
        shown = [_parameter(a) for name, a in fields.items() if name not in further]
        shown += [_parameter(a, Panel("Settings")) for name, a in chosen.items() if name not in further]

        def called(**values: Any) -> None:
            if "set" in fields:
                values |= _further_values(values, fields | chosen)
            given = {name: value for name in chosen if (value := values.pop(name, None)) is not None}
            function(_build(own, values), given)

        called.further = further  # type: ignore[attr-defined]
        return _as_command(called, function, shown)

    return decorate


def _further_values(values: Mapping[str, Any], known: Mapping[str, Argument]) -> dict[str, Any]:
    """The settings in --set by name, and under `set` what concerns Parts. The values are checked later."""
    read: dict[str, Any] = {"set": []}
    for pair in values["set"] or ():
        name, equals, value = pair.partition("=")
        name = name.strip().lower().replace("-", "_")
        if equals and name in known and name != "set":
            read[name] = _value_of(known[name], value.strip())
        else:
            read["set"].append(pair)
    return read


def _value_of(argument: Argument, text: str) -> Any:
    kind = _plain(argument.hint)
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return Path(text) if kind is Path else text


def _annotations(argument: Argument) -> tuple[Any, ...]:
    return get_args(argument.hint)[1:] if get_origin(argument.hint) is Annotated else ()


def _build(kind: type[T], values: dict[str, Any]) -> T:
    """An instance of the dataclass with the user's values. Raises UsageError (E109) for an invalid value."""
    given = {name: value for name, value in values.items() if value is not None}
    return kind(**arguments.check(kind, given, "the command", "E109"))


def _as_command(
    called: Function, function: Callable[..., None], parameters: list[inspect.Parameter]
) -> Function:
    """`called` with these parameters for typer, and with the name and docstring of `function`."""
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__doc__, called.__name__ = function.__doc__, function.__name__
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    return called


def _parameter(argument: Argument, panel: Panel | None = None) -> inspect.Parameter:
    """The parameter of an option for typer. Its default is None, which marks options that were left out."""
    beside = _annotations(argument)
    panel = next((item for item in beside if isinstance(item, Panel)), panel)
    shown = {
        "help": help_text(argument),
        "show_default": False,
        "rich_help_panel": panel.title if panel else None,
        "autocompletion": completion.of(argument.name),
    }
    kind = _plain(argument.hint)
    required = argument.default is REQUIRED
    if required or any(isinstance(item, Positional) for item in beside):
        default, kind, info = (inspect.Parameter.empty if required else None), kind, typer.Argument(**shown)
    else:
        default, info = None, typer.Option(_flag(argument), **shown)
    annotation = Annotated[kind if required else kind | None, info]
    return inspect.Parameter(
        argument.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _flag(argument: Argument) -> str:
    """The flag: `--drop-last`, or `--clip/--no-clip` for an option that is on by default."""
    name = argument.name.replace("_", "-")
    return f"--{name}/--no-{name}" if argument.default is True else f"--{name}"


def help_text(argument: Argument) -> str:
    """The meaning of an option, followed by its choices or range and its default in brackets, escaped for
    rich."""
    facts = ["|".join(map(str, argument.choices)) or argument.range]
    if argument.default is True:
        facts.append("default: on")
    elif argument.default is not False and argument.default not in (REQUIRED, None, "", (), {}):
        facts.append(f"default: {argument.default}")
    brackets = "; ".join(filter(None, facts))
    return (argument.meaning + (f" [{brackets}]" if brackets else "")).replace("[", "\\[")


def _plain(hint: Any) -> Any:
    """The type for typer: without Annotated and None; a tuple becomes a repeatable option."""
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
            raise UsageError(
                "E102",
                "--set takes part.argument=value, such as flea.alpha=0.1, or setting=value, such as"
                f" lr_decay=0.99; got '{pair}'.{suggestion(pair.partition('=')[0], FIELDS)}",
            )
        by_part.setdefault(part.strip().lower(), {})[argument.strip()] = calls.parse_value(
            value, path, "E102"
        )
    return by_part


def set_over(before: Mapping[str, Mapping[str, Any]], pairs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The arguments of Parts from a file, overridden by those of `--set`. Raises UsageError (E102)."""
    by_part = {part: dict(values) for part, values in before.items()}
    for part, values in parts_arguments(pairs).items():
        by_part[part] = {**by_part.get(part, {}), **values}
    return by_part


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The options that select a model."""

    run: Annotated[
        Path,
        "folder of a finished run, of a run at a site (SITE/runs/NUMBER), or one that was exported for"
        " the hub",
    ]
    client: Annotated[str | None, "take this client's own model, by name or number"] = None
    model: Annotated[str | None, "FILE.py:FUNCTION of a run whose model is in a Python file"] = None
    method: Annotated[
        str | None, "the method of a run of which a Part is in a Python file, with your own file"
    ] = None
    best: Annotated[bool, "take the model of the best round, which a run with --set keep_best=true keeps"] = (
        False
    )
    unfinished: Annotated[bool, "also take the model of a run that has not come to its end"] = False
    data: Annotated[
        str, "at a site, whose model some methods make with its samples: its data, as it took part with them"
    ] = ""
    classes: Annotated[str, "of these data all class names, in the order on which the sites agreed"] = ""

    def result(self) -> Result | PublishedModel | SitePredictor:
        """The run as `unskew.load` reads it; raises UsageError as `load` does, and StateError (E117) for a
        comparison."""
        from unskew import api
        from unskew.cli.site_run import names
        from unskew.records.checkpoints import LATEST
        from unskew.results import Comparison, SitePredictor
        from unskew.system import disk

        own = {"data": self.data or None, "classes": names(self.classes)}
        code = {"model": self.model, "method": self.method}
        result = api.load(self.run, **code, unfinished=self.unfinished, best=self.best, **own)
        if isinstance(result, Comparison):
            raise disk.no_run(self.run, LATEST)
        # A site's weights may be from an earlier round than the coordinator's.
        if isinstance(result, SitePredictor):
            print(result, file=sys.stderr)
        return result

    @property
    def whose(self) -> int | str | None:
        """The client's number or name; None for the global model."""
        return int(self.client) if self.client and self.client.isdecimal() else self.client
