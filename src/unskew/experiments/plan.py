"""An experiment as its file tells it, and the runs it takes.

A file names the paper's table, the settings common to all its rows, the methods (the paper's name -> ours), the rows
with their own settings and the published numbers, the claims to test, and what the paper leaves open with our choice.
One of a user's own needs methods and rows only.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from unskew import config
from unskew.comparison.cells import CENTRALISED, LOCAL, Cell
from unskew.config import Settings
from unskew.data import archives, sets
from unskew.errors import DataError, UsageError, suggestion
from unskew.experiments.claims import Claim, Trend
from unskew.methods import registry
from unskew.methods.registry import meant_for


@dataclass(frozen=True)
class Row:
    """One setting of a table. settings: all that it sets, the table's common ones among them.

    published: the paper's number by the paper's name of a method, in the table's unit.
    metric, scope: of which quantity, where a row tells of another one than its table; at: as it stood after this round.
    x, panel: where a row stands on its experiment's `axis`, and in which picture.
    """

    name: str
    settings: dict[str, Any]
    published: dict[str, float] = field(default_factory=dict)
    note: str = ""
    metric: str = ""
    scope: str = ""
    at: int = 0
    x: float | None = None
    panel: str = ""

    @property
    def at_hand(self) -> bool:
        """Whether its data are on this machine."""
        name, _ = sets.parse(self.data)
        return name == "digits" or Path(self.data).exists() or archives.place(name) is not None

    @property
    def data(self) -> str:
        return self.settings.get("data", Settings.data)


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper.

    measure: the score it reports; metric: of which quantity; unit: percent, or a number as it is. axis: what the rows
    vary, where the paper draws the score against it.
    """

    name: str
    methods: dict[str, str]
    rows: tuple[Row, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    title: str = ""
    paper: str = ""
    measure: Literal["best", "last", "mean10"] = "mean10"
    claims: tuple[Claim | Trend, ...] = ()
    open: tuple[str, ...] = ()
    metric: str = "accuracy"
    scope: str = "global"
    unit: Literal["percent", "number"] = "percent"
    axis: str = ""
    finding: str = ""
    """What running it showed, where that differs from the paper: what was varied, what explains it."""
    grids: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    overrides: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Settings that one method has differently, by the paper's name of it."""
    factors: dict[str, float] = field(default_factory=dict)
    """On the learning rate of every row, by the paper's name of a method: what tuning found."""

    def row(self, name: str) -> Row:
        for row in self.rows:
            if row.name == name:
                return row
        known = [r.name for r in self.rows]
        raise UsageError(
            "E126", f"'{self.name}' has no row '{name}'.{suggestion(name, known)} Rows: {', '.join(known)}."
        )

    def settings_of(self, row: Row, method: str, scale: float = 1.0) -> Settings:
        """The settings of one cell but for its seed. scale: of the rounds, at least two of which remain.

        What a row sets of a Part reaches the methods that have it and leaves the others' runs as they are.
        """
        own = self.overrides.get(method, {})
        made = config.build({**row.settings, **own, "method": self.methods[method]})
        made = made.replace(rounds=max(2, math.ceil(made.rounds * scale)), lr=made.lr * self.factors.get(method, 1.0))
        if made.method in (LOCAL, CENTRALISED):
            return made
        return made.replace(method=str(registry.parse(made.method, meant_for(made.method, made.set))), set={})


def widened(made: Experiment, methods: Sequence[str]) -> Experiment:
    """With further methods, each called what it is written as. Raises UsageError for one that cannot be read or is there."""
    more: dict[str, str] = {}
    for text in methods:
        engine = text if text in (LOCAL, CENTRALISED) else str(registry.parse(text))
        if text in {*made.methods, *more} or engine in {*made.methods.values(), *more.values()}:
            raise UsageError("E126", f"'{made.name}' compares '{text}' already; leave out --add {text}.")
        more[text] = engine
    return dataclasses.replace(made, methods={**made.methods, **more})


def chosen(
    made: Experiment, rows: Sequence[str] = (), methods: Sequence[str] = ()
) -> tuple[list[Row], list[str], list[Row]]:
    """(rows to run, methods to run, rows whose data are missing); what is no row's name may be the beginning of several."""
    named = {name for w in rows for name in _rows(made, w)}
    called = {name for w in methods for name in _methods(made, w)}
    wanted = [r for r in made.rows if not rows or r.name in named]
    names = [m for m in made.methods if not methods or m in called]
    runnable = [r for r in wanted if r.at_hand]
    if not runnable:
        missing = ", ".join(sorted({r.data for r in wanted}))
        raise DataError("E402", f"no data for these rows ({missing}); set UNSKEW_DATA to the folder that holds them.")
    return runnable, names, [r for r in wanted if not r.at_hand]


def _rows(made: Experiment, wanted: str) -> list[str]:
    """The row of this name, or else all that begin so; an unknown one is refused."""
    names = [r.name for r in made.rows]
    return [wanted] if wanted in names else [n for n in names if n.startswith(wanted)] or [made.row(wanted).name]


def _methods(made: Experiment, wanted: str) -> list[str]:
    """The methods that the paper, or the engine, calls so."""
    found = [m for m, text in made.methods.items() if wanted.lower() in (m.lower(), text)]
    if not found:
        known = ", ".join(made.methods)
        raise UsageError("E126", f"'{made.name}' does not compare '{wanted}'; it compares {known}.")
    return found


def cells(
    made: Experiment, rows: Sequence[Row], methods: Sequence[str], seeds: Sequence[int], scale: float, at: Path
) -> dict[tuple[str, str, int], Cell]:
    """Every run by (row, method, seed); runs of equal configuration are one, whatever experiment asks for them."""
    found, folders = {}, {}
    for seed in seeds:
        for row in rows:
            for method in methods:
                settings = made.settings_of(row, method, scale).replace(seed=seed)
                path = at / "cells" / settings.fingerprint()[:20]
                cell = folders.setdefault(path, Cell(f"{row.name} {method}", seed, path, settings))
                found[row.name, method, seed] = cell
    return found
