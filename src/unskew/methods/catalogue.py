"""The methods of this package, read from the source of the files in `methods/`, `merge/` and `privacy/`.

No file is imported, so that names can be listed before torch is loaded, and a new method is one new file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
FOLDERS = ("methods", "merge", "privacy")


@dataclass(frozen=True)
class Entry:
    """A Part that a file defines.

    name: the method's name. module, kind: the module and name of its class. summary: the file's first line.
    presets: further names of the method, each with its settings.
    """

    name: str
    module: str
    kind: str
    summary: str
    presets: Mapping[str, Mapping[str, object]] = field(default_factory=dict[str, Mapping[str, object]])


@cache
def entries() -> dict[str, Entry]:
    """Every method of this package by name, sorted by name."""
    known = [entry for folder in FOLDERS for entry in _read_folder(PACKAGE / folder)]
    return {entry.name: entry for entry in sorted(known, key=lambda e: e.name)}


@cache
def presets() -> dict[str, tuple[Entry, Mapping[str, object]]]:
    """Every preset by name: its method and settings."""
    return {
        name: (entry, settings) for entry in entries().values() for name, settings in entry.presets.items()
    }


def _read_folder(folder: Path) -> Iterator[Entry]:
    sources = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.py"))}
    classes = [
        (path, node) for path, tree in sources.items() for node in tree.body if isinstance(node, ast.ClassDef)
    ]
    parts = {"Part", "OwnModel", "Remembered"}
    while more := {node.name for _, node in classes if parts & set(_bases(node))} - parts:
        parts |= more  # a Part may inherit from another one's class
    for path, node in classes:
        values = dict(_values(node)) if node.name in parts else {}
        if isinstance(name := values.get("name"), str):
            module = f"unskew.{folder.name}.{path.stem}"
            summary = (ast.get_docstring(sources[path]) or "").split("\n")[0].rstrip(".")
            yield Entry(name, module, node.name, summary, values.get("presets", {}))  # type: ignore[arg-type]


def _bases(node: ast.ClassDef) -> Iterator[str]:
    return (base.id for base in node.bases if isinstance(base, ast.Name))


def _values(node: ast.ClassDef) -> Iterator[tuple[str, object]]:
    """The class attributes `name` and `presets`, which have to be literals."""
    for line in node.body:
        match line:
            case ast.Assign(targets=[ast.Name(id="name" | "presets" as attribute)], value=value):
                yield attribute, ast.literal_eval(value)
            case ast.AnnAssign(
                target=ast.Name(id="name" | "presets" as attribute), value=ast.expr() as value
            ):
                yield attribute, ast.literal_eval(value)
            case _:
                pass
