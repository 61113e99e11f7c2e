"""Commands from annotated functions, so that every option is described in one place.

A parameter `test_data: Annotated[str | None, "meaning"] = None` becomes `--test-data`, with its meaning,
range, choices and default in `--help`. Parameters without a default are positional arguments. A parameter
`arguments` stands for the fields of its dataclass, and `given` for settings of a run.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from unskew.cli.plain_output import plain_output
from unskew.config import FIELDS, OPTIONS, Settings
from unskew.errors import UnskewError, UsageError, printable, suggestion
from unskew.formats import arguments, calls
from unskew.formats.arguments import REQUIRED, Argument

COLUMNS = ("site", "label", "target", "group")
"""Arguments of tables, which are written in brackets after the path."""
SETTINGS = tuple(a.name for a in arguments.of(Settings) if a.name not in ("method", "set"))
"""The settings that are options. `method` is an argument; `set` is written --set part.argument=value."""
Function = Callable[..., None]
T = TypeVar("T")


def completion_of(argument: str) -> Callable[[str], list[str]] | None:
    """The function that completes an argument of a command; None for the shell, which names files."""
    if argument in ("method", "methods"):
        return complete_methods
    if argument not in ("data", "model", "attack", "table"):
        return None
    return lambda incomplete: sorted(name for name in _names(argument) if name.startswith(incomplete))


def complete_methods(incomplete: str) -> list[str]:
    """Names of methods; after a +, the whole text with each name at its end."""
    from unskew.methods import catalogue

    before, plus, name = incomplete.rpartition("+")
    known = ("fedavg", *catalogue.entries(), *catalogue.presets())
    return sorted(f"{before}{plus}{each}" for each in known if each.startswith(name))


def _names(argument: str) -> Iterable[str]:
    match argument:
        case "data":
            from unskew.data import registry

            return registry.names()
        case "model":
            from unskew.models import registry

            return ("auto", *registry.names())
        case "attack":
            from unskew.attacks import registry

            return registry.names()
    from unskew import experiments

    return [path.stem for path in Path(experiments.__file__).parent.glob("*.yaml")]


@dataclass(frozen=True)
class Option:
    """In an annotation: how the value is written.

    flag: an option of this name, required if it has no default. positional: an argument although it has a
    default. further: --set NAME=VALUE. panel: the heading of the option in `--help`.
    """

    flag: str = ""
    positional: bool = False
    further: bool = False
    panel: str = ""


POSITIONAL, FURTHER = Option(positional=True), Option(further=True)


@dataclass(frozen=True)
class FromSettings:
    """In the annotation of `given`: it holds the values of these settings that the user gave."""

    names: Sequence[str] = SETTINGS


Json = Annotated[bool, Option("--json"), "print JSON and nothing else"]


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
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if type(error).__name__ != "NoSuchOption":  # of click, or of typer's own copy of it
                raise
            option = getattr(error, "option_name", "")
            if advice := _advice(option, words, self.further):
                text = f"{option} is no option of {ctx.command_path}"
                raise UsageError("E109", f"{text}; {advice}.") from None
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        if ctx.meta.get("all"):
            _print_further(self.further)

    def invoke(self, ctx: Any) -> Any:
        with plain_output():
            return super().invoke(ctx)


class Commands(TyperGroup):
    """A group of commands."""

    def get_params(self, ctx: Any) -> Any:
        return _without_flag_types(super().get_params(ctx))


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


def _advice(option: str, words: Sequence[str], further: Mapping[str, Argument]) -> str:
    """What to write in place of an option that does not exist: a further setting, a column of a table or an
    argument of a method; "" for other options."""
    name, value = option.lstrip("-").replace("-", "_"), _value_after(option, words)
    if name.removeprefix("no_") in further:
        value = "false" if name.startswith("no_") else value
        return f"write --set {name.removeprefix('no_')}={value}"
    if not further:
        return ""
    if name in COLUMNS:
        return f'columns are named behind the path of the table: --data "table.csv({name}={value})"'
    from unskew.methods import registry

    for word in words:
        with suppress(UnskewError):
            for part in registry.parse(word).parts:
                if name in {a.name for a in arguments.of(type(part))}:
                    return f'arguments of a method stand in brackets: "{part.name}({name}={value})"'
    return ""


def _value_after(option: str, words: Sequence[str]) -> str:
    """The value that was written for an option; VALUE without any."""
    for word, following in zip(words, [*words[1:], "-"]):
        if word.startswith(f"{option}="):
            return printable(word.partition("=")[2])
        if word == option and not following.startswith("-"):
            return printable(following)
    return "VALUE"


def as_command(function: Function) -> Function:
    """The command of a function for typer, which checks the values of its options. Raises UsageError (E109)
    for an invalid value."""
    hints = typing.get_type_hints(function, include_extras=True)
    own = hints.get("arguments", function)
    settings = _annotation(hints.get("given"), FromSettings(())).names
    fields = {a.name: a for a in arguments.of(own)}
    chosen = {a.name: a for a in arguments.of(Settings) if a.name in settings}
    by_set = bool(settings) and "set" in fields
    further = {name: a for name, a in fields.items() if _annotation(a.hint, Option()).further}
    if by_set:
        further |= {name: a for name, a in chosen.items() if name not in OPTIONS}

    def called(**values: Any) -> None:
        if by_set:
            values |= _further_values(values, fields | chosen)
        given = {name: value for name in chosen if (value := values.pop(name, None)) is not None}
        named = {name: value for name, value in values.items() if value is not None}
        checked = arguments.check(own, named, "the command", "E109")
        words = checked if own is function else {"arguments": own(**checked)}
        function(**words, **({"given": given} if settings else {}))

    parameters = [_parameter(a) for name, a in fields.items() if name not in further]
    parameters += [_parameter(a, "Settings") for name, a in chosen.items() if name not in further]
    called.further = further  # type: ignore[attr-defined]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__doc__, called.__name__ = function.__doc__, function.__name__
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    return called


def _annotation(hint: Any, default: T) -> T:
    """The item in an annotation that has the type of `default`, or else `default`."""
    items = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((item for item in items if isinstance(item, type(default))), default)


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


def _parameter(argument: Argument, panel: str | None = None) -> inspect.Parameter:
    """The parameter of an option for typer. Its default is None, which marks options that were left out."""
    hint, required = argument.hint, argument.default is REQUIRED
    option = _annotation(hint, Option())
    shown = {
        "help": help_text(argument),
        "show_default": False,
        "rich_help_panel": option.panel or panel,
        "autocompletion": completion_of(argument.name),
    }
    info = typer.Option(option.flag or _flag(argument), **shown)
    if option.positional or (required and not option.flag):
        info = typer.Argument(**shown)
    kind = _plain(hint)
    return inspect.Parameter(
        argument.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if required else None,
        annotation=Annotated[kind if required else kind | None, info],
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


def set_over(before: Mapping[str, Mapping[str, Any]], pairs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The arguments of Parts from a file, overridden by those of `--set`, such as `flea.alpha=0.1`. Raises
    UsageError (E102)."""
    by_part = {part: dict(values) for part, values in before.items()}
    for pair in pairs:
        path, equals, value = pair.partition("=")
        part, dot, argument = path.partition(".")
        if not (equals and dot and part and argument):
            raise UsageError(
                "E102",
                "--set takes part.argument=value, such as flea.alpha=0.1, or setting=value, such as"
                f" lr_decay=0.99; got '{pair}'.{suggestion(path, FIELDS)}",
            )
        values = by_part.setdefault(part.strip().lower(), {})
        values[argument.strip()] = calls.parse_value(value, path, "E102")
    return by_part
