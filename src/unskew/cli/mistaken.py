"""What users write that no option means, told in a sentence of ours before the parser sees it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from typer.core import TyperGroup

from unskew.errors import UsageError

COLUMNS = {"run": ("site", "label", "target"), "compare": ("site", "label")}
"""By command, the arguments of a table that are none of its options: they stand in the brackets behind the table's path."""


class Commands(TyperGroup):
    """The commands, which look at what a user wrote first."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        check(args)
        return super().parse_args(ctx, args)


def check(args: Sequence[str]) -> None:
    """Raises UsageError (E109) for a column that is written as an option, and for --tune without a number."""
    command, given = (args[0], list(args[1:])) if args else ("", [])
    if "--" in given:
        given = given[: given.index("--")]
    options = {_name(text): _value(given, i) for i, text in enumerate(given) if text.startswith("--")}
    columns = [name for name in COLUMNS.get(command, ()) if name in options]
    if columns and "on" not in options:
        raise UsageError("E109", _columns(command, columns, options))
    if command == "compare" and "tune" in options and not re.fullmatch(r"[+-]?\d+", options["tune"]):
        got = f"got {options['tune']!r}" if options["tune"] else "none was given"
        text = "--tune takes a number, how many settings of every method are tried first"
        raise UsageError("E109", f"{text}, and {got}; write --tune 8, say.")


def _columns(command: str, names: Sequence[str], options: dict[str, str]) -> str:
    path = options.get("data", "").partition("(")[0] or "table.csv"
    inside = ",".join(f"{name}={options[name] or 'COLUMN'}" for name in names)
    written = " and ".join(f"--{name}" for name in names)
    which = "is no option" if len(names) == 1 else "are no options"
    return (
        f'{written} {which} of unskew {command}: columns are named behind the table\'s path, --data "{path}({inside})".'
    )


def _name(text: str) -> str:
    """Of `--tune=8`, tune."""
    return text[2:].partition("=")[0].lower().replace("_", "-")


def _value(given: Sequence[str], place: int) -> str:
    """What stands behind the option at this place; "" where another option does, or nothing."""
    _, equals, value = given[place].partition("=")
    if equals:
        return value
    after = given[place + 1 : place + 2]
    return after[0] if after and not after[0].startswith("--") else ""
