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

    def margins(self, scores: Scores) -> dict[str, float]:
        """The margin in each row that has all the methods the claim mentions; empty if it compares with nothing."""
        if not self.than:
            return {}
        complete = _complete_rows(scores, self.methods)
        return {row: self.margin(score) for row, score in complete.items() if not self.rows or row in self.rows}

    def margin(self, score: Mapping[str, float]) -> float:
        """By how many points the claim is met in one row, given every method's score; negative where it is refuted."""
        lead = score[self.better] - max(score[method] for method in self.than)
        if self.measure == "stability":
            lead = min(score[method] for method in self.than) - score[self.better]
        return min(score[a] - score[b] for a, b in self.less) - lead if self.less else lead


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

    def margins(self, scores: Scores) -> dict[str, float]:
        """How many points the score falls, by step `a to b` from one row that was run to the next."""
        complete = _complete_rows(scores, self.methods)
        lead = {r: s[self.falls] - (s[self.against] if self.against else 0.0) for r, s in complete.items()}
        sequences = [[row for row in rows if row in lead] for rows in self.along]
        return {f"{a} to {b}": lead[a] - lead[b] for rows in sequences for a, b in pairwise(rows)}


def _complete_rows(scores: Scores, methods: Sequence[str]) -> Scores:
    """The rows that have a number for each of these methods."""
    return {row: s for row, s in scores.items() if not any(math.isnan(s.get(m, math.nan)) for m in methods)}
