"""Docstrings as the documentation site shows them: what is said of each argument or field becomes an item of
a list."""

from __future__ import annotations

import re
from collections.abc import Iterable


def itemised(text: str, names: Iterable[str]) -> str:
    """A docstring in which `name: meaning` and `name, name: meaning` begin items, in Markdown. names: those
    that are explained."""
    name = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    if not name:
        return text
    begins = re.compile(rf"(^|(?<=[.;]) |(?<=[.;])\n|(?<=\n))((?:{name})(?:, (?:{name}))*): ")
    text = begins.sub(lambda found: "\n- " + ", ".join(f"`{n}`" for n in found[2].split(", ")) + ": ", text)
    text = re.sub(r"(?m)^(?!- )(.+)\n+(?=- `)", r"\1\n\n", text, count=1)
    return re.sub(r"(?<=[.])\s+(?=Raises |Returns |Other options)", "\n\n", text)
