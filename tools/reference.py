"""The pages of reference that are made from the command line, the settings and the error codes."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import typer

from unskew import cli
from unskew.attacks import registry
from unskew.config import OPTIONS, Settings
from unskew.formats import arguments
from unskew.formats.arguments import Argument
from unskew.formats.markdown import block, table

WITH_SETTINGS = ("run", "compare")
"""The commands that have an option for every setting."""


def settings() -> str:
    """docs/settings.md: every setting of a run."""
    rows = ((f"`{a.name}`", _values(a), _shown(a.default), _plain(a.meaning)) for a in arguments.of(Settings))
    return f"""# Settings

All settings of a run. The same word is a key in YAML (`eval_every: 5`) and an argument of `unskew.run` and `unskew.compare` (`eval_every=5`), and on the command line an option (`--rounds 5`) or, for settings that are needed less often, `--set eval_every=5`. Unknown names are refused, with a suggestion.

[Data sets and settings](data-sets.md) has the options of each partition, feature skew and availability. Arguments of a method are on its page ([all methods](methods.md)).

{table(("setting", "value", "default", "meaning"), rows)}
"""


def commands() -> str:
    """docs/commands.md: every command with its arguments and options."""
    text = """# Commands

`unskew COMMAND --help` prints the same. Every refusal is one sentence with a [code](errors.md).

| exit code | meaning |
| --- | --- |
| 0 | done |
| 1 | an unexpected error |
| 2 | wrong use, data that are missing or unfit, or a folder that cannot be used |
| 4 | the run ended, but so few replies were used that its weights are no result |
| 75 | paused; `unskew resume` continues it |
| 130, 143 | interrupted, terminated |
| 141 | what read the output closed it, as `head` does |
"""
    return text + "".join(
        _command(name, command) for name, command in _commands(typer.main.get_command(cli.app()))
    )


def attacks() -> str:
    """docs/attacks.md: every attack, what it computes, and its settings."""
    text = """# Attacks

What each attack of `unskew attack RUN NAME` computes, and its settings: `--set steps=100`, and `--samples` for the setting of that name. [What payloads tell](privacy.md) says how scores are read and what was measured.
"""
    return text + "".join(_attack(name) for name in registry.names())


def _attack(name: str) -> str:
    kind = registry.kind_of(name)
    first, _, rest = inspect.cleandoc(sys.modules[kind.__module__].__doc__ or "").partition("\n")
    rows = ((f"`{a.name}`", _values(a), _shown(a.default), _plain(a.meaning)) for a in arguments.of(kind))
    settings = table(("setting", "value", "default", "meaning"), rows)
    asks = f"It asks: {kind.asks} The adversary: {kind.adversary}."
    return f"\n## {name}\n\n{first}\n\n{asks}\n\n{block(rest.strip())}\n\n{settings}\n"


def _commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command by its whole name, groups before what is in them."""
    for name, inner in group.commands.items():
        if hasattr(inner, "commands"):
            yield from _commands(inner, (*path, name))
        else:
            yield " ".join((*path, name)), inner


def _command(name: str, command: Any) -> str:
    known = {a.name for a in arguments.of(Settings)} if name in WITH_SETTINGS else set()
    own = [
        p
        for p in command.params
        if p.name != "help" and not (p.name in known and p.param_type_name == "option" and p.name != "set")
    ]
    words = [_word(p) for p in own if p.param_type_name == "argument"]
    rows = (
        (
            ", ".join(f"`{o}`" for o in (*p.opts, *p.secondary_opts))
            if p.param_type_name == "option"
            else f"`{_word(p)}`",
            _plain(p.help),
        )
        for p in own
    )
    text = f"\n## unskew {name}\n\n    unskew {' '.join((name, *words))}\n\n{command.help}\n"
    if own:
        text += f"\n{table(('', 'meaning'), rows)}\n"
    options = ", ".join(
        f"`--{o.replace('_', '-')}`" for o in OPTIONS if o in {p.name for p in command.params}
    )
    settings = f"These [settings](settings.md) are options, too: {options}. The others are written `--set NAME=VALUE`."
    return text + (f"\n{settings}\n" if known else "")


def _word(parameter: Any) -> str:
    """An argument as usage lines write it: METHOD, or [METHOD] where it may be left out."""
    name = parameter.name.upper() + "..." * (parameter.nargs == -1)
    return name if parameter.required else f"[{name}]"


def _values(argument: Argument) -> str:
    if argument.choices:
        return ", ".join(f"`{choice}`" for choice in argument.choices)
    kind = "by Part" if argument.type == "dict" else argument.type
    return ", ".join(filter(None, (kind, argument.range)))


def _shown(default: Any) -> str:
    return "" if default is None or callable(default) or default == {} else f"`{default}`"


def _plain(text: str | None) -> str:
    return (text or "").replace("\\[", "[").replace("|", "\\|").replace("<", "&lt;")
