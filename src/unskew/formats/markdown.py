"""Markdown tables and text blocks, for generated pages of the documentation and for model cards."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from unskew.errors import printable
from unskew.formats import arguments

WHOLE_WORDS: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
LABEL = re.compile(r"[A-Z][\w ,'.-]{0,28}: +|[a-z_]\w{0,11}: {2,}|[A-Z]\w*(?: \w+)? {2,}")
"""A label at the start of a docstring's line: `Client:`, `Up, once:`, `Stage II  `."""
EQUATION = re.compile(r"\S{1,12} (?:<-|=) ")
OF_PROSE = ("Differs from the paper:", "Differs from the papers:", "Privacy:", "Guarantee:")
"""Labels of paragraphs of prose."""
SPECIAL = re.compile(r"[\\`*_{}\[\]<>|!]")


def escape_markdown(text: str) -> str:
    """A text as one line of literal Markdown; names of classes and data may contain any characters."""
    return SPECIAL.sub(r"\\\g<0>", printable(text))


def block(text: str, width: int = 88, filled: int = 110) -> str:
    """Lines of a docstring as a text block of a page, re-wrapped to `width` columns; "" for no lines.

    Prose was wrapped at `filled` columns. A line stays a line of its own if it had room for the first word of
    the next one, if a label (`Test:`) or an equation follows, or if it begins with a label other than one of
    prose. Indented lines, such as formulas, are not changed.
    """
    lines: list[str] = []
    last = ""
    for line in text.strip("\n").splitlines():
        prose = bool(line.strip()) and not line[0].isspace()
        begins = LABEL.match(line) or (EQUATION.match(line) and last.endswith((".", ":", ";")))
        goes_on = prose and last and not begins and len(last) + 1 + len(line.split()[0]) > filled
        if goes_on:
            lines[-1] += f" {line}"
        else:
            lines.append(line)
        ends = not goes_on and bool(LABEL.match(line)) and not line.startswith(OF_PROSE)
        last = line if prose and not ends else ""
    kept = [line if line[:1].isspace() else _wrap(line, width) for line in lines]
    return "```text\n{}\n```".format("\n".join(kept)) if kept else ""


def _wrap(line: str, width: int) -> str:
    """A line, wrapped at `width` columns, if possible between statements; further lines are indented to the
    end of the label."""
    label = LABEL.match(line)
    indent = " " * (len(label[0]) if label else 4)
    if line.startswith(OF_PROSE) or not (label or EQUATION.match(line)):
        return textwrap.fill(line, width, **WHOLE_WORDS)
    first, *others = re.split(r"(?<=\S)( {2,})(?=\S)", line[len(label[0]) :] if label else line)
    shown = [first]
    for gap, statement in zip(others[::2], others[1::2]):
        if len(indent) + len(shown[-1] + gap + statement) > width:
            shown.append(statement)
        else:
            shown[-1] += gap + statement
    wrapped = [textwrap.fill(s, width - len(indent), **WHOLE_WORDS) for s in shown]
    rest = textwrap.indent("\n".join(wrapped), indent)
    return (label[0] if label else "") + rest[len(indent) :]


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
