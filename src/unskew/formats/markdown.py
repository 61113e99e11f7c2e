"""Markdown tables and text blocks, for generated pages of the documentation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from unskew.errors import printable
from unskew.formats import arguments

SPECIAL = re.compile(r"[\\`*_{}\[\]<>|!]")


def escape_markdown(text: str) -> str:
    """A text as one line of literal Markdown; names of classes and data may contain any characters."""
    return SPECIAL.sub(r"\\\g<0>", printable(text))


def block(text: str) -> str:
    """Lines of a docstring as a text block of a page; "" for no lines."""
    return f"```text\n{text.strip()}\n```" if text.strip() else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def arguments_table(owner: str, kinds: Mapping[str, Callable[..., Any]]) -> str:
    """A table of the arguments of functions or dataclasses. owner: the heading of the column of names."""
    rows = (
        (f"`{name}`", f"`{a.name}`", a.type, a.range, _default(a), a.meaning)
        for name, kind in kinds.items()
        for a in arguments.of(kind)
    )
    return table((owner, "argument", "type", "range", "default", "meaning"), rows)


def _default(argument: arguments.Argument) -> str:
    return "required" if argument.default is arguments.REQUIRED else f"`{argument.default}`"
