"""Tables in Markdown: of the pages in docs/ that are made from the code, and of cards."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from unskew import arguments
from unskew.errors import printable

SPECIAL = re.compile(r"[\\`*_{}\[\]<>|!]")


def escaped(text: str) -> str:
    """A text that Markdown shows as it is, in one line: names of classes and data may be somebody else's."""
    return SPECIAL.sub(r"\\\g<0>", printable(text))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def arguments_table(owner: str, kinds: Mapping[str, Callable[..., Any]]) -> str:
    """The arguments of several functions or dataclasses, by name. owner: the head of the column of names."""
    rows = (
        (f"`{name}`", f"`{a.name}`", a.type, a.range, _default(a), a.meaning)
        for name, kind in kinds.items()
        for a in arguments.of(kind)
    )
    return table((owner, "argument", "type", "range", "default", "meaning"), rows)


def _default(argument: arguments.Argument) -> str:
    return "required" if argument.default is arguments.REQUIRED else f"`{argument.default}`"
