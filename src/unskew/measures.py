"""The names of the measures of a run in addition to its scores. docs/measures.md explains them.

A measure is one file in `runs/measures/`: pure functions of tensors, and a probe that applies them to a
round. Names are read from the source of the probes, so that they are known before torch is loaded.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PROBES = Path(__file__).parent / "runs" / "measures"
NONE = "none"


@dataclass(frozen=True)
class Entry:
    """A measure. module, kind: where the class of its probe is. summary: one line for `--help` and the
    pages."""

    module: str
    kind: str
    summary: str


def names_in(text: str) -> tuple[str, ...]:
    """`diversity, separation` -> ("diversity", "separation"), each once. Raises KeyError with the first
    unknown name."""
    spelt = (name.strip().lower().replace("-", "_") for name in text.split(",") if name.strip())
    names = tuple(name for name in dict.fromkeys(spelt) if name != NONE)
    for name in names:
        if name not in NAMES:
            raise KeyError(name)
    return names


def measures_text(names: Sequence[str]) -> str:
    """The text that `names_in` reads."""
    return ",".join(names) or NONE


def entries(folder: Path) -> dict[str, Entry]:
    """The measures by name, read from the probes' files in this folder without importing them.

    A probe is a class with the attributes `name` and `summary`, both written as plain strings.
    """
    known = {}
    for path in sorted(folder.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            texts = dict(_texts(node)) if isinstance(node, ast.ClassDef) else {}
            if isinstance(node, ast.ClassDef) and texts.get("name"):
                known[texts["name"]] = Entry(f"unskew.runs.measures.{path.stem}", node.name, texts["summary"])
    return known


def _texts(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """The class attributes that are strings."""
    for line in node.body:
        value = line.value if isinstance(line, ast.AnnAssign) else None
        if (
            isinstance(line, ast.AnnAssign)
            and isinstance(value, ast.Constant)
            and isinstance(value.value, str)
        ):
            yield ast.unparse(line.target), value.value


ENTRIES = entries(PROBES)
NAMES = {name: entry.summary for name, entry in ENTRIES.items()}
"""The summary of every measure by name."""
