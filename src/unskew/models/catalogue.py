"""The models that this package has, read from the source of the files in `networks/`.

No file is imported, so that models can be listed before torch is loaded, and a new model is one new file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "networks"


@dataclass(frozen=True)
class Entry:
    """A model that a file defines. summary: the file's first line; arguments: each with its default, as in the source.

    aliases: further names of the model.
    """

    name: str
    summary: str
    arguments: tuple[str, ...]
    aliases: tuple[str, ...]


@cache
def entries() -> dict[str, Entry]:
    """Every model by its own name, in the order of names."""
    files = sorted(path for path in FOLDER.glob("*.py") if path.stem != "__init__")
    return {path.stem: _entry(path) for path in files}


@cache
def aliases() -> dict[str, str]:
    """The own name of each model that has another name, by that other name."""
    return {alias: name for name, entry in entries().items() for alias in entry.aliases}


def names() -> tuple[str, ...]:
    """Every name that a model can be called by, in alphabetical order."""
    return tuple(sorted([*entries(), *aliases()]))


def describe() -> dict[str, str]:
    """What each model is and which arguments it takes, in one line, by name."""
    lines = {name: "; ".join(filter(None, (e.summary, ", ".join(e.arguments)))) for name, e in entries().items()}
    lines |= {alias: f"another name for {name}" for alias, name in aliases().items()}
    return dict(sorted(lines.items()))


def _entry(path: Path) -> Entry:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    summary = (ast.get_docstring(tree) or "").split("\n")[0].rstrip(".")
    return Entry(path.stem, summary, tuple(_arguments(tree, path.stem)), tuple(_aliases(tree)))


def _arguments(tree: ast.Module, name: str) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            defaults = node.args.defaults
            for argument, default in zip(node.args.args[-len(defaults) :] if defaults else [], defaults):
                yield f"{argument.arg}={ast.unparse(default)}"


def _aliases(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "ALIASES" for t in node.targets):
            yield from ast.literal_eval(node.value)
