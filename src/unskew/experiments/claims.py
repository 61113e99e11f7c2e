"""What a paper says of its table, as something that numbers bear out or do not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

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
