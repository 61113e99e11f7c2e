"""Tables and blocks of text in Markdown: of the pages in docs/ that are made from the code, and of cards."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from unskew.errors import printable
from unskew.formats import arguments

WHOLE_WORDS: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
LABEL = re.compile(r"[A-Z][\w ,'.-]{0,28}: +|[a-z_]\w{0,11}: {2,}|[A-Z]\w*(?: \w+)? {2,}")
"""What begins a statement of a docstring: `Client:`, `Up, once:`, `Stage II  `."""
EQUATION = re.compile(r"\S{1,12} (?:<-|=) ")
OF_PROSE = ("Differs from the paper:", "Differs from the papers:", "Privacy:", "Guarantee:")
"""Labels of paragraphs."""
SPECIAL = re.compile(r"[\\`*_{}\[\]<>|!]")


def escape_markdown(text: str) -> str:
    """A text that Markdown shows as it is, in one line: names of classes and data may be somebody else's."""
    return SPECIAL.sub(r"\\\g<0>", printable(text))


def block(text: str, width: int = 88, filled: int = 110) -> str:
    """Lines of a docstring as a block of text that a page shows without cutting lines off; "" without any.

    Prose, which was filled to `filled` columns, is filled to `width`. A line that could have held the next
    one's first word ended on purpose and still ends there; so does what stands before a label (`Test:`) or an
    equation, and a label's own line, unless prose follows it. Indented lines, such as formulas, stay as they
    are.
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
    """A line in lines of a width, broken between its statements where they fit; the further ones stand below
    what follows the label."""
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
    """The arguments of several functions or dataclasses, by name. owner: the head of the column of names."""
    rows = (
        (f"`{name}`", f"`{a.name}`", a.type, a.range, _default(a), a.meaning)
        for name, kind in kinds.items()
        for a in arguments.of(kind)
    )
    return table((owner, "argument", "type", "range", "default", "meaning"), rows)


def _default(argument: arguments.Argument) -> str:
    return "required" if argument.default is arguments.REQUIRED else f"`{argument.default}`"
