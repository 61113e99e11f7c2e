"""The runs of a comparison: every method with every seed, written to compare.yaml so that it can be resumed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from unskew import config, disk
from unskew.comparison.watch import Cell
from unskew.disk import slug
from unskew.engine import resolve
from unskew.engine.disk.folder import check_same
from unskew.errors import StateError, UsageError, suggestion

FILE = "compare.yaml"


def plan_cells(parent: Path, methods: Sequence[str], seeds: Sequence[int], options: dict[str, Any]) -> list[Cell]:
    """The runs of a comparison, each in a folder of its own under `parent`; nothing is written.

    options: settings that all methods share. Raises UsageError for a method or a setting that cannot be read, for
    arguments that no method has (E102) and for equal methods (E119), StateError (E112) for a folder with another run.
    """
    cells, unused = [], dict(options.get("set") or {})
    for method in methods:
        base = config.build({**options, "method": method})
        arguments = resolve.arguments_for(method, base.set)
        unused = {part: values for part, values in unused.items() if part not in arguments}
        base = resolve.compared(base.replace(set=arguments))
        for seed in seeds:
            cells.append(Cell(method, seed, parent / f"{slug(method)}--s{seed}", base.replace(seed=seed)))
    if unused:
        part = next(iter(unused))
        raise UsageError("E102", f"--set names '{part}', which is a part of none of them.{suggestion(part, methods)}")
    if len({cell.path for cell in cells}) < len(cells):
        raise UsageError("E119", "two of the methods to compare are the same; name each once.")
    for cell in cells:
        if (cell.path / "config.yaml").exists():
            check_same(cell.path, cell.settings)
    return cells


def describe(parent: Path, methods: Sequence[str], seeds: Sequence[int], options: dict[str, Any]) -> None:
    """Write compare.yaml, from which a comparison is resumed."""
    values = config.build({**options, "method": "fedavg"}).as_dict()
    shared = {name: value for name, value in values.items() if name not in ("method", "seed")}
    parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump({"methods": list(methods), "seeds": list(seeds), "settings": shared}, sort_keys=False)
    disk.replace(parent / FILE, text)


def described(parent: Path) -> list[Cell]:
    """The runs of a comparison that has begun. Raises StateError: E117 where there is none, E111 for a damaged file."""
    file = parent / FILE
    if not file.is_file():
        raise StateError("E117", f"{parent} is no comparison: it has no compare.yaml.")
    try:
        values = yaml.safe_load(file.read_text())
        methods, seeds, settings = (values[name] for name in ("methods", "seeds", "settings"))
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise StateError("E111", f"{file} cannot be read: {' '.join(str(error).split())}.") from None
    return plan_cells(parent, methods, seeds, settings)
