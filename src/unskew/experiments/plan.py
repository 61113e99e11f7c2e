"""An experiment as its file tells it, and the runs it takes.

A file names the paper's table, the settings common to all its rows, the methods (the paper's name -> ours), the rows
with their own settings and the published numbers, the claims to test, and what the paper leaves open with our choice.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import yaml

from unskew import config
from unskew.config import Settings
from unskew.core.method import Method
from unskew.data import archives, sets
from unskew.engine.cells import Cell
from unskew.errors import DataError, UsageError, suggestion

MEASURES = ("best", "last", "mean10")


@dataclass(frozen=True)
class Row:
    """One setting of a table. published: the paper's number by the paper's name of a method, in the table's unit.

    metric, scope: of which quantity, where a row tells of another one than its table; at: as it stood after this round.
    x, panel: where a row stands on its experiment's `axis`, and in which picture.
    """

    name: str
    settings: dict[str, Any]
    published: dict[str, float]
    note: str = ""
    metric: str = ""
    scope: str = ""
    at: int = 0
    x: float | None = None
    panel: str = ""

    @property
    def at_hand(self) -> bool:
        """Whether its data are on this machine."""
        name, _ = sets.parse(self.settings["data"])
        return name == "digits" or archives.place(name) is not None


Scores = Mapping[str, Mapping[str, float]]
"""Of what was run, by row and method."""


@dataclass(frozen=True)
class Claim:
    """What a paper says of its table: in each of `rows`, `better` exceeds every one of `than` by at least `by` points.

    measure: of which score; "stability" is the deviation over the last 50 rounds, where less is better.
    less: pairs (a, b); then the claim is that it exceeds them by less than every a exceeds its b.
    """

    places = "rows"

    text: str
    better: str
    than: tuple[str, ...]
    by: float = 0.0
    measure: str = ""
    rows: tuple[str, ...] = ()
    less: tuple[tuple[str, str], ...] = ()

    @property
    def methods(self) -> tuple[str, ...]:
        """All that it speaks of."""
        return (self.better, *self.than, *(m for pair in self.less for m in pair))

    def margins(self, scores: Scores) -> dict[str, float]:
        """By row, of those in which all that it speaks of was run; none where it compares nothing."""
        if not self.than:
            return {}
        held = {r: s for r, s in _whole(scores, self.methods).items() if not self.rows or r in self.rows}
        return {row: self.margin(score) for row, score in held.items()}

    def margin(self, score: Mapping[str, float]) -> float:
        """In points, from every method's score: at least `by` where the claim holds, negative the other way round."""
        ahead = score[self.better] - max(score[m] for m in self.than)
        if self.measure == "stability":
            ahead = min(score[m] for m in self.than) - score[self.better]
        return min(score[a] - score[b] for a, b in self.less) - ahead if self.less else ahead


@dataclass(frozen=True)
class Trend:
    """What a paper says along its rows: the score of `falls`, or its lead on `against`, falls from row to row.

    along: rows in that order, several such sequences where a figure has several panels; a row that was not run is passed
    over. by: points at least, each time. measure: of which score.
    """

    text: str
    falls: str
    along: tuple[tuple[str, ...], ...]
    against: str = ""
    by: float = 0.0
    measure: str = ""

    places = "steps"

    @property
    def methods(self) -> tuple[str, ...]:
        return (self.falls, self.against) if self.against else (self.falls,)

    @property
    def rows(self) -> tuple[str, ...]:
        return tuple(r for rows in self.along for r in rows)

    def margins(self, scores: Scores) -> dict[str, float]:
        """By step from one row that was run to the next: how far it falls."""
        held = _whole(scores, self.methods)
        lead = {r: s[self.falls] - (s[self.against] if self.against else 0.0) for r, s in held.items()}
        runs = [[r for r in rows if r in lead] for rows in self.along]
        return {f"{a} to {b}": lead[a] - lead[b] for rows in runs for a, b in pairwise(rows)}


def _whole(scores: Scores, methods: Sequence[str]) -> Scores:
    """The rows that have a number for each of these methods."""
    return {row: s for row, s in scores.items() if not any(math.isnan(s.get(m, math.nan)) for m in methods)}


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper.

    measure: the score it reports; metric: of which quantity; unit: percent, or a number as it is. axis: what the rows
    vary, where the paper draws the score against it.
    """

    name: str
    title: str
    paper: str
    measure: Literal["best", "last", "mean10"]
    settings: dict[str, Any]
    methods: dict[str, str]
    rows: tuple[Row, ...]
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
        made = config.build({**self.settings, **row.settings, **own, "method": self.methods[method]})
        made = made.replace(rounds=max(2, math.ceil(made.rounds * scale)), lr=made.lr * self.factors.get(method, 1.0))
        if made.method in ("local", "centralised"):
            return made
        there = {p.name for p in Method.parse(made.method).parts}
        wanted = {part: given for part, given in made.set.items() if part in there}
        return made.replace(method=str(Method.parse(str(Method.parse(made.method)), wanted)), set={})


def names() -> list[str]:
    """Every experiment there is."""
    return sorted(f.name.removesuffix(".yaml") for f in files(__package__).iterdir() if f.name.endswith(".yaml"))


def load(name: str) -> Experiment:
    """An experiment by name. Raises UsageError (E126) if there is none."""
    if name not in names():
        raise UsageError(
            "E126", f"unknown experiment '{name}'.{suggestion(name, names())} `unskew list experiments` shows all."
        )
    return read(name, (files(__package__) / f"{name}.yaml").read_text())


def read(name: str, text: str) -> Experiment:
    """An experiment from its file's text. Raises UsageError (E126) where it does not hold together."""
    given = yaml.safe_load(text)
    known = {f.name for f in dataclasses.fields(Experiment)} - {"name"}
    for key in given:
        if key not in known:
            raise UsageError("E126", f"{name}.yaml: unknown entry '{key}'.{suggestion(key, known)}")
    rows = tuple(_row(name, n, r) for n, r in given.pop("rows").items())
    claims = tuple(_claim(c, given["methods"]) for c in given.pop("claims", []))
    made = Experiment(name, rows=rows, claims=claims, **{**given, "open": tuple(given.get("open", ()))})
    for row in rows:
        for method in row.published:
            _known(made, method)
    for claim in claims:
        for method in claim.methods:
            _known(made, method)
        for row in claim.rows:
            made.row(row)
    if made.measure not in MEASURES:
        raise UsageError("E126", f"{name}.yaml: measure is one of {', '.join(MEASURES)}, not '{made.measure}'.")
    if made.unit not in ("percent", "number"):
        raise UsageError("E126", f"{name}.yaml: unit is percent or number, not '{made.unit}'.")
    return made


def _row(file: str, name: str, given: dict[str, Any]) -> Row:
    known = {f.name for f in dataclasses.fields(Row)} - {"name"}
    for key in given:
        if key not in known:
            raise UsageError("E126", f"{file}.yaml, row {name}: unknown entry '{key}'.{suggestion(key, known)}")
    return Row(name, **{"published": {}, **given})


def _claim(given: dict[str, Any], methods: Iterable[str]) -> Claim | Trend:
    """`than: all` stands for every other method, `than: all but X, Y` leaves some out; one that `falls` is a Trend."""
    if "falls" in given:
        return Trend(**{**given, "along": tuple(tuple(rows) for rows in given["along"])})
    than = given["than"]
    if isinstance(than, str):
        left_out = {x.strip() for x in than.removeprefix("all").removeprefix(" but").split(",")}
        than = [m for m in methods if m != given["better"] and m not in left_out]
    less = tuple((a, b) for a, b in given.get("less", ()))
    return Claim(**{**given, "than": tuple(than), "rows": tuple(given.get("rows", ())), "less": less})


def _known(made: Experiment, method: str) -> None:
    if method not in made.methods:
        raise UsageError("E126", f"{made.name}.yaml speaks of '{method}', which is not among its methods.")


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
        missing = ", ".join(sorted({r.settings["data"] for r in wanted}))
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
                path.mkdir(parents=True, exist_ok=True)
                cell = folders.setdefault(path, Cell(f"{row.name} {method}", seed, path, settings))
                found[row.name, method, seed] = cell
    return found
