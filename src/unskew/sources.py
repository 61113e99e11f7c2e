"""Facts about a Python file, read from its source without importing it.

Names can so be listed before torch is loaded, and a new model or data set is one new file.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any


def files(folder: Path) -> list[Path]:
    """The Python files of a package by name, without its `__init__.py`."""
    return sorted(path for path in folder.glob("*.py") if path.stem != "__init__")


def docstring(path: Path) -> str:
    """The docstring of a file; "" if it has none."""
    return ast.get_docstring(_parsed(path)) or ""


def summary(path: Path) -> str:
    """The first line of the docstring, without its full stop."""
    return docstring(path).split("\n")[0].rstrip(".")


def defaults(path: Path, function: str) -> tuple[str, ...]:
    """`argument=default`, as the source has it, for each argument of this function that may be left out."""
    for node in _parsed(path).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            values = node.args.defaults
            optional = node.args.args[len(node.args.args) - len(values) :]
            return tuple(f"{one.arg}={ast.unparse(value)}" for one, value in zip(optional, values))
    return ()


def constant(path: Path, name: str, otherwise: Any) -> Any:
    """The literal that the file assigns to this name at its top level, or `otherwise`."""
    for node in _parsed(path).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return ast.literal_eval(node.value)
    return otherwise


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
