"""Attacks on the finished runs of a comparison, one after another; what a run has measured already is not measured again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unskew.attacks.perform import quickly
from unskew.comparison.watch import Cell
from unskew.engine.disk.code import Code
from unskew.engine.resolve import is_reference
from unskew.errors import StateError


def attack_all(cells: Sequence[Cell], say: Callable[[str], None]) -> None:
    """Attack every run that has a score and is no reference. say: told of each run, and of what hindered an attack."""
    for cell in cells:
        if is_reference(cell.settings.method) or cell.code:
            continue
        say(f"attacks on {cell.method}, seed {cell.seed}")
        try:
            quickly(cell.path, say, Code.of(cell.settings))
        except StateError as reason:  # nothing is wrong with the comparison: it has a run that cannot be attacked
            say(f"not measured: {reason}")
