"""An experiment: one table or figure, as its YAML file describes it, the claims that its paper makes, and
shortened runs of it.

The file names the settings common to all rows, the methods (the paper's name and ours), the rows with their
own settings and the published numbers, the claims to test, and what the paper leaves open together with our
choice. A user's own file needs only methods and rows. A claim has a form that numbers can confirm or refute.

A shortened run has fewer rounds, and everything that is counted in rounds is changed so that it ends where a
whole run ends. Of T rounds, S are left. A factor per round on the learning rate becomes its (T - 1) / (S -
1)-th power, rounds in which the rate falls evenly become that many times fewer, and a Part changes its own
schedules (`Part.paced`). A share of the rounds needs no change.
Availability is kept: how often clients are absent is the setting, not a schedule.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from unskew import config, data
from unskew.config import Settings
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.errors import UsageError, suggestion
from unskew.methods import registry
from unskew.methods.registry import arguments_of_method
from unskew.round.run import is_reference

Scores = Mapping[str, Mapping[str, float]]
"""The scores of what was run, by row and method, in points."""

Terms = list[tuple[int, str, str]]
"""What a margin is a sum of: (1 or -1, row, method) of each score."""


@dataclass(frozen=True)
class Claim:
    """In each of `rows` (default: all), the method `better` exceeds every method of `than` by at least `by`
    points.

    measure: the score compared, default the table's own; "stability" is the deviation over the last 50
    rounds, where lower is better. Of a score that is better when lower, such as rmse, `better` lies below the
    others.
    less: pairs of methods (a, b). If given, the claim is that the lead of `better` is smaller than the lead
    of every a over its b.
    """

    places: ClassVar[str] = "rows"

    text: str
    better: str
    than: tuple[str, ...]
    by: Annotated[float, Ge(0)] = 0.0
    measure: str = ""
    rows: tuple[str, ...] = ()
    less: tuple[tuple[str, str], ...] = ()

    @property
    def methods(self) -> tuple[str, ...]:
        """Every method that the claim mentions."""
        return (self.better, *self.than, *(method for pair in self.less for method in pair))

    def terms(self, scores: Scores) -> dict[str, Terms]:
        """The margin in each row that has all the methods the claim mentions; empty if it compares with
        nothing."""
        if not self.than:
            return {}
        complete = _complete_rows(scores, self.methods)
        return {
            row: [(sign, row, method) for sign, method in self._terms(score)]
            for row, score in complete.items()
            if not self.rows or row in self.rows
        }

    def _terms(self, score: Mapping[str, float]) -> list[tuple[int, str]]:
        """One row's, given every method's score."""
        better = -1 if self.measure == "stability" else 1
        rival = max(self.than, key=lambda method: better * score[method])
        lead = [(better, self.better), (-better, rival)]
        if not self.less:
            return lead
        a, b = min(self.less, key=lambda pair: score[pair[0]] - score[pair[1]])
        return [(1, a), (-1, b), *((-sign, method) for sign, method in lead)]


@dataclass(frozen=True)
class Trend:
    """The score of the method `falls`, or its lead over `against`, falls from row to row by at least `by`
    points a step.

    along: the rows in their order; several such sequences where a figure has several panels. Rows that were
    not run are
    skipped. measure: the score compared, default the table's own.
    """

    places: ClassVar[str] = "steps"

    text: str
    falls: str
    along: tuple[tuple[str, ...], ...]
    against: str = ""
    by: Annotated[float, Ge(0)] = 0.0
    measure: str = ""

    @property
    def methods(self) -> tuple[str, ...]:
        """Every method that the claim mentions."""
        return (self.falls, self.against) if self.against else (self.falls,)

    @property
    def rows(self) -> tuple[str, ...]:
        """Every row that the claim mentions."""
        return tuple(row for rows in self.along for row in rows)

    def terms(self, scores: Scores) -> dict[str, Terms]:
        """By how much the score falls, by step `a to b` from one row that was run to the next."""
        complete = _complete_rows(scores, self.methods)
        sequences = [[row for row in rows if row in complete] for rows in self.along]
        return {f"{a} to {b}": self._terms(a, b) for rows in sequences for a, b in pairwise(rows)}

    def _terms(self, a: str, b: str) -> Terms:
        compared = [(1, self.falls), *([(-1, self.against)] if self.against else [])]
        return [(sign * side, row, method) for side, row in ((1, a), (-1, b)) for sign, method in compared]


def margins(claim: Claim | Trend, scores: Scores) -> dict[str, float]:
    """By how many points a claim is met, by row or step; negative where it is refuted."""
    return {
        place: sum(sign * scores[row][method] for sign, row, method in terms)
        for place, terms in claim.terms(scores).items()
    }


def _complete_rows(scores: Scores, methods: Sequence[str]) -> Scores:
    """The rows that have a number for each of these methods."""
    return {row: s for row, s in scores.items() if not any(math.isnan(s.get(m, math.nan)) for m in methods)}


LEAST_ROUNDS = 2
"""Rounds that are left at least."""


def shorten(settings: Settings, share: float) -> Settings:
    """The settings of a run of this share of the rounds, with the method as text; the same settings for a
    share of 1."""
    whole, rounds = settings.rounds, max(LEAST_ROUNDS, math.ceil(settings.rounds * share))
    if rounds >= whole:
        return settings.replace(rounds=rounds)
    pace = (whole - 1) / (rounds - 1)
    short = settings.replace(
        rounds=rounds, lr_decay=settings.lr_decay**pace, lr_rounds=settings.lr_rounds / pace
    )
    if is_reference(settings.method):
        return short
    method = registry.parse(settings.method)
    paced = Method(*(part.paced(whole, rounds) for part in method.parts))
    return short if paced == method else short.replace(method=str(paced))


def schedule_changes(whole: Settings, short: Settings) -> list[str]:
    """What shortening has changed beside the number of rounds: `lr_decay 0.98 becomes 0.9201`."""
    each = [(name, getattr(whole, name), getattr(short, name)) for name in ("lr_decay", "lr_rounds")]
    if whole.method != short.method:
        for before, after in zip(registry.parse(whole.method).parts, registry.parse(short.method).parts):
            values = ((f"{before.name}.{f.name}", f.name) for f in fields(before))  # type: ignore[arg-type]
            each += [(text, getattr(before, name), getattr(after, name)) for text, name in values]
    return [f"{name} {before:.4g} becomes {after:.4g}" for name, before, after in each if before != after]


def distinct_changes(pairs: Iterable[tuple[Settings, Settings]]) -> list[str]:
    """The changes of several runs, each once. pairs: the settings of the whole run and of the shortened
    one."""
    return list(dict.fromkeys(change for whole, short in pairs for change in schedule_changes(whole, short)))


@dataclass(frozen=True)
class Leak:
    """The score of an attack that a row reports: which attack with which settings, of what (`of`), and in
    which unit.

    of, metric: as `unskew attack` prints them, such as "linear decoder" and "MSE".
    """

    name: str
    of: str
    metric: str
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """The same for all rows that read scores of one attack with the same settings."""
        text = json.dumps(self.settings, sort_keys=True, default=str)
        return f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Log:
    """What a published log says of one run: the score after every round from the first, in the table's unit,
    and its source."""

    source: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class TableRow:
    """One row of a table: a setting in which every method runs.

    settings: all settings of the row, including those common to all rows.
    published: the paper's numbers by the paper's names of the methods, in the table's unit.
    metric, scope: the quantity to report, where it is not the table's; at: the round after which to read it
    (0: the last).
    x, panel: the row's position on the experiment's `axis`, and the picture in which it is drawn.
    attack: what to report of an attack on the finished runs, instead of a score of their training.
    logs: published logs of this setting, by the paper's names of the methods.
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
    attack: Leak | None = None
    logs: dict[str, Log] = field(default_factory=dict)

    @property
    def has_data(self) -> bool:
        """Whether the row's data set is on this machine."""
        return data.at_hand(self.data)

    @property
    def data(self) -> str:
        """The data set's name or path."""
        return self.settings.get("data", Settings.data)


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper, or of a user's own.

    methods: the paper's name of each method, and the text that `unskew run` takes for it.
    measure: which score of a run the table reports; metric, scope: of which quantity; unit: percent, or a
    plain number.
    axis: what varies from row to row, where the paper draws the score against it.
    finding: what running the table showed where it differs from the paper, and what explains it.
    grids: the values to try when tuning, by Part and argument. overrides: settings that hold for one method
    only.
    factors: what tuning multiplies the learning rate of a method by. overrides and factors go by the paper's
    names.
    """

    name: str
    methods: dict[str, str]
    rows: tuple[TableRow, ...]
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
    grids: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    overrides: dict[str, dict[str, Any]] = field(default_factory=dict)
    factors: dict[str, float] = field(default_factory=dict)

    def row(self, name: str) -> TableRow:
        """The row of this name. Raises UsageError (E126) if there is none."""
        for row in self.rows:
            if row.name == name:
                return row
        known = [row.name for row in self.rows]
        raise UsageError(
            "E126", f"'{self.name}' has no row '{name}'.{suggestion(name, known)} Rows: {', '.join(known)}."
        )

    def parts(self, method: str) -> tuple[Part, ...]:
        """The Parts of one of its methods, by the paper's name; a reference (local, centralised) has none to
        set."""
        text = self.methods[method]
        return () if is_reference(text) else tuple(registry.parse(text).parts)

    def settings_of(self, row: TableRow, method: str, scale: float = 1.0) -> Settings:
        """The settings of the runs of one method in one row, apart from the seed.

        scale: the share of the rounds to run, of which at least two remain; what is counted in rounds is
        shortened, too. Arguments that the row sets for a Part reach the methods that have this Part and no
        others, so that the other methods' runs stay the same runs.
        """
        overrides = self.overrides.get(method, {})
        settings = config.build({**row.settings, **overrides, "method": self.methods[method]})
        settings = settings.replace(lr=settings.lr * self.factors.get(method, 1.0))
        if not is_reference(settings.method):
            arguments = arguments_of_method(settings.method, settings.set)
            settings = settings.replace(method=str(registry.parse(settings.method, arguments)), set={})
        return shorten(settings, scale)
