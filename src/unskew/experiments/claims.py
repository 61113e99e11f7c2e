"""The claims that a paper makes about its table, in a form that numbers can confirm or refute."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar

from annotated_types import Ge

Scores = Mapping[str, Mapping[str, float]]
"""The scores of what was run, by row and method, in points."""

Terms = list[tuple[int, str, str]]
"""What a margin is a sum of: (1 or -1, row, method) of each score."""


@dataclass(frozen=True)
class Claim:
    """In each of `rows` (default: all), the method `better` exceeds every method of `than` by at least `by` points.

    measure: the score compared, default the table's own; "stability" is the deviation over the last 50 rounds, where
    lower is better. Of a score that is better when lower, such as rmse, `better` lies below the others.
    less: pairs of methods (a, b). If given, the claim is that the lead of `better` is smaller than the lead of every a
    over its b.
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
        """The margin in each row that has all the methods the claim mentions; empty if it compares with nothing."""
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
    """The score of the method `falls`, or its lead over `against`, falls from row to row by at least `by` points a step.

    along: the rows in their order; several such sequences where a figure has several panels. Rows that were not run are
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
