"""Markdown tables and text blocks, for generated pages of the documentation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def block(text: str) -> str:
    """Lines of a docstring as a text block of a page; "" for no lines."""
    return f"```text\n{text.strip()}\n```" if text.strip() else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
