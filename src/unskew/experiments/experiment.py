"""An experiment: one table or figure of a YAML file, the claims of its paper, and shortened runs.

The file names the settings common to all rows, the methods (the paper's name and ours), the rows with their
own settings and the published numbers, the claims to test, and what the paper leaves open together with our
choice. A user's own file needs only methods and rows. A claim has a form that numbers can confirm or refute.
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

from unskew import config
from unskew.config import Settings
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.data.registry import at_hand
from unskew.errors import UsageError, suggestion
from unskew.methods import registry
from unskew.methods.registry import arguments_of_method
from unskew.round.run import is_reference

Scores = Mapping[str, Mapping[str, float]]
"""Scores in points, by row and method."""

Terms = list[tuple[int, str, str]]
"""The terms of the sum that is a margin: (1 or -1, row, method) of each score."""


@dataclass(frozen=True)
class Claim:
    """The claim that `better` exceeds every method of `than` by at least `by` points in each of `rows`.

    With a negative `by` the claim is that `better` is at most so many points behind.

    rows: all rows if empty. measure: the score compared, by default the one that the table reports;
    "stability" is the deviation over late rounds, where lower is better. For a score that is better
    when lower, such as rmse, `better` lies below the others. less: pairs of methods (a, b); with pairs, the
    claim is that the lead of `better` is smaller than the lead of every a over its b.
    """

    places: ClassVar[str] = "rows"

    text: str
    better: str
    than: tuple[str, ...]
    by: Annotated[float, Ge(-1_000_000)] = 0.0
    measure: str = ""
    rows: tuple[str, ...] = ()
    less: tuple[tuple[str, str], ...] = ()

    @property
    def methods(self) -> tuple[str, ...]:
        """Every method that the claim mentions."""
        return (self.better, *self.than, *(method for pair in self.less for method in pair))

    def terms(self, scores: Scores) -> dict[str, Terms]:
        """The terms of the margin in each row that has all methods of the claim; empty without `than`."""
        if not self.than:
            return {}
        complete = _complete_rows(scores, self.methods)
        return {
            row: [(sign, row, method) for sign, method in self._terms(score)]
            for row, score in complete.items()
            if not self.rows or row in self.rows
        }

    def _terms(self, score: Mapping[str, float]) -> list[tuple[int, str]]:
        """The terms of one row. score: by method."""
        better = -1 if self.measure == "stability" else 1
        rival = max(self.than, key=lambda method: better * score[method])
        lead = [(better, self.better), (-better, rival)]
        if not self.less:
            return lead
        a, b = min(self.less, key=lambda pair: score[pair[0]] - score[pair[1]])
        return [(1, a), (-1, b), *((-sign, method) for sign, method in lead)]


@dataclass(frozen=True)
class Trend:
    """The claim that the score of `falls`, or its lead over `against`, falls by at least `by` points a step.

    along: sequences of rows, one for each panel of a figure; rows that were not run are skipped.
    measure: the score compared, by default the one that the table reports.
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
        """The terms of the fall at each step `a to b` between neighbouring rows that were run."""
        complete = _complete_rows(scores, self.methods)
        sequences = [[row for row in rows if row in complete] for rows in self.along]
        return {f"{a} to {b}": self._terms(a, b) for rows in sequences for a, b in pairwise(rows)}

    def _terms(self, a: str, b: str) -> Terms:
        compared = [(1, self.falls), *([(-1, self.against)] if self.against else [])]
        return [(sign * side, row, method) for side, row in ((1, a), (-1, b)) for sign, method in compared]


def margins(claim: Claim | Trend, scores: Scores) -> dict[str, float]:
    """The margin in points by row or step; negative if the claim is refuted there."""
    return {
        place: sum(sign * scores[row][method] for sign, row, method in terms)
        for place, terms in claim.terms(scores).items()
    }


def _complete_rows(scores: Scores, methods: Sequence[str]) -> Scores:
    """The rows with a score of every one of these methods."""
    return {row: s for row, s in scores.items() if not any(math.isnan(s.get(m, math.nan)) for m in methods)}


LEAST_ROUNDS = 2
"""The least number of rounds of a shortened run."""


def shorten(settings: Settings, share: float) -> Settings:
    """The settings of a run with this share of the rounds, which has its method as text.

    A shortened run has S of the T rounds of a whole run, and its schedules are changed so that they end at
    the same values. With p = (T - 1) / (S - 1), a factor per round on the learning rate is raised to the
    power p, the number of rounds over which the rate falls evenly is divided by p, and each Part changes its
    own schedules (`Part.paced`). A schedule given as a share of the rounds needs no change. Availability
    stays as it is: it is a setting, not a schedule.
    """
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
    """The settings besides the number of rounds that differ, such as `lr_decay 0.98 becomes 0.9201`."""
    each = [(name, getattr(whole, name), getattr(short, name)) for name in ("lr_decay", "lr_rounds")]
    if whole.method != short.method:
        for before, after in zip(registry.parse(whole.method).parts, registry.parse(short.method).parts):
            values = ((f"{before.name}.{f.name}", f.name) for f in fields(before))  # type: ignore[arg-type]
            each += [(text, getattr(before, name), getattr(after, name)) for text, name in values]
    return [f"{name} {before:.4g} becomes {after:.4g}" for name, before, after in each if before != after]


def distinct_changes(pairs: Iterable[tuple[Settings, Settings]]) -> list[str]:
    """The changes of several runs, each once. pairs: settings of the whole and of the shortened run."""
    return list(dict.fromkeys(change for whole, short in pairs for change in schedule_changes(whole, short)))


@dataclass(frozen=True)
class Leak:
    """The score of an attack that a row reports.

    name, settings: of the attack. of, metric: the score, as `unskew attack` prints it, such as "linear
    decoder" and "MSE".
    """

    name: str
    of: str
    metric: str
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """Identifies the attack together with its settings."""
        text = json.dumps(self.settings, sort_keys=True, default=str)
        return f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class TableRow:
    """One row of a table: a setting in which every method runs.

    settings: all settings of the row, including those common to all rows.
    published: the paper's numbers by the paper's names of the methods, in the table's unit.
    metric, scope: the quantity to report, where it is not the table's; at: the round after which to read it
    (0: the last). paper_rounds: the rounds of the paper's runs, where they are not the table's.
    attack: the score of an attack on the finished runs, reported in place of a training score.
    """

    name: str
    settings: dict[str, Any]
    published: dict[str, float] = field(default_factory=dict)
    note: str = ""
    metric: str = ""
    scope: str = ""
    at: int = 0
    paper_rounds: Annotated[int, Ge(0)] = 0
    attack: Leak | None = None

    @property
    def has_data(self) -> bool:
        """Whether the row's data are on this machine."""
        return at_hand(self.data)

    @property
    def data(self) -> str:
        """The data set's name or path."""
        return self.settings.get("data", Settings.data)


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper, or a user's table.

    methods: by the paper's name of each method, the text that `unskew run` takes for it.
    measure: the score of a run that the table reports; metric, scope: its quantity; unit: percent, or number.
    base: by the paper's name, the method by whose score in the same row and seed all scores are divided; "":
    none.
    paper_rounds: the rounds of the paper's runs; by default those of the longest row of a paper's table.
    finding: how our results differ from the paper, and the explanation.
    overrides: settings for single methods, by the paper's names.
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
    base: str = ""
    paper_rounds: Annotated[int, Ge(0)] = 0
    finding: str = ""
    overrides: dict[str, dict[str, Any]] = field(default_factory=dict)

    def row(self, name: str) -> TableRow:
        """The row of this name. Raises UsageError (E126) if there is none."""
        for row in self.rows:
            if row.name == name:
                return row
        known = [row.name for row in self.rows]
        raise UsageError(
            "E126", f"'{self.name}' has no row '{name}'.{suggestion(name, known)} Rows: {', '.join(known)}."
        )

    def share_of_rounds(self, row: TableRow) -> float:
        """The share of the paper's rounds that whole runs of a row have."""
        rounds = {r.name: int(r.settings.get("rounds", Settings.rounds)) for r in self.rows}
        whole = row.paper_rounds or self.paper_rounds or (max(rounds.values()) if self.paper else 0)
        return rounds[row.name] / whole if whole else 1.0

    def parts(self, method: str) -> tuple[Part, ...]:
        """The Parts of a method, by the paper's name; a reference (local, centralised) has none."""
        text = self.methods[method]
        return () if is_reference(text) else tuple(registry.parse(text).parts)

    def settings_of(self, row: TableRow, method: str, scale: float = 1.0) -> Settings:
        """The settings of the runs of one method in one row, apart from the seed.

        scale: the share of the rounds to run, at least two rounds; schedules are shortened as well. Arguments
        that the row sets for a Part apply only to methods with this Part, so that the runs of other methods
        stay shared between rows.
        """
        overrides = self.overrides.get(method, {})
        settings = config.build({**row.settings, **overrides, "method": self.methods[method]})
        if not is_reference(settings.method):
            arguments = arguments_of_method(settings.method, settings.set)
            settings = settings.replace(method=str(registry.parse(settings.method, arguments)), set={})
        return shorten(settings, scale)
