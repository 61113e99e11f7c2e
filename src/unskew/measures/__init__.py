"""What a run can measure beside its scores: pure functions of tensors, one file each. docs/measures.md explains them.

A measure's probe, in `engine/probes/`, applies such functions to a round. Names are read from the probes' source, so that
they are known before torch is loaded, and a new measure is one new file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PROBES = Path(__file__).parents[1] / "engine" / "probes"
NONE = "none"


@dataclass(frozen=True)
class Entry:
    """A measure. module, kind: where the class of its probe is. summary: one line for `--help` and the pages."""

    module: str
    kind: str
    summary: str


def names_in(text: str) -> tuple[str, ...]:
    """`diversity, separation` -> ("diversity", "separation"), each once. Raises KeyError with the first unknown name."""
    spelt = (name.strip().lower().replace("-", "_") for name in text.split(",") if name.strip())
    names = tuple(name for name in dict.fromkeys(spelt) if name != NONE)
    for name in names:
        if name not in NAMES:
            raise KeyError(name)
    return names


def written(names: Sequence[str]) -> str:
    """The text that `names_in` reads."""
    return ",".join(names) or NONE


def entries(folder: Path) -> dict[str, Entry]:
    """By name, the measures whose probes have their files in this folder; no file is imported.

    A probe is a class with the attributes `name` and `summary`, both written as plain strings.
    """
    known = {}
    for path in sorted(folder.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            texts = dict(_texts(node)) if isinstance(node, ast.ClassDef) else {}
            if isinstance(node, ast.ClassDef) and texts.get("name"):
                known[texts["name"]] = Entry(f"unskew.engine.probes.{path.stem}", node.name, texts["summary"])
    return known


def _texts(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """The class attributes that are strings."""
    for line in node.body:
        value = line.value if isinstance(line, ast.AnnAssign) else None
        if isinstance(line, ast.AnnAssign) and isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield ast.unparse(line.target), value.value


ENTRIES = entries(PROBES)
NAMES = {name: entry.summary for name, entry in ENTRIES.items()}
"""Every measure by name, and what it is."""
