"""Markdown tables and text blocks, for generated pages of the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from unskew.errors import printable

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
