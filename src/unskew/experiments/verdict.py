"""Whether the runs bear out what a paper claims.

A claim holds in a row if the means over seeds do; a claim along rows holds at a step from one row to the next. It is
reproduced if it holds in every row, or at every step, that was run. Scores of attacks have intervals over the samples that
were attacked; where the margin between such scores may be chance, the claim is neither held nor refuted there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unskew.experiments.claims import Claim, Scores, Trend, margins
from unskew.experiments.entries import Entry
from unskew.experiments.experiment import Experiment


@dataclass(frozen=True)
class Verdict:
    """A claim with its margin in points by row or step, negative where it is refuted.

    paper: the paper's own margins. unclear: the rows or steps whose margin may be chance.
    """

    claim: Claim | Trend
    margins: dict[str, float]
    paper: dict[str, float]
    unclear: frozenset[str] = frozenset()

    @property
    def held(self) -> int:
        """In how many rows, or at how many steps, the claim holds; a tie exceeds nothing."""
        clear = [points for place, points in self.margins.items() if place not in self.unclear]
        return sum(points > 0 and points >= self.claim.by for points in clear)

    @property
    def word(self) -> str:
        """`reproduced`, `reproduced in 2 of 3 rows, unclear in 1`, `not reproduced`, `unclear` or `not run`."""
        if not self.margins:
            return "not run"
        if self.held == len(self.margins):
            return "reproduced"
        if len(self.unclear) == len(self.margins):
            return "unclear"
        if not self.held and not self.unclear:
            return "not reproduced"
        share = f"reproduced in {self.held} of {len(self.margins)} {self.claim.places}"
        return f"{share}, unclear in {len(self.unclear)}" if self.unclear else share


def verdicts_of(experiment: Experiment, entries: Sequence[Entry]) -> list[Verdict]:
    """A verdict on every claim. A row that lacks one of the methods a claim mentions does not count for that claim."""
    return [_verdict(experiment, claim, entries) for claim in experiment.claims]


def _verdict(experiment: Experiment, claim: Claim | Trend, entries: Sequence[Entry]) -> Verdict:
    ours: dict[str, dict[str, float]] = {row.name: {} for row in experiment.rows}
    papers: dict[str, dict[str, float]] = {row.name: {} for row in experiment.rows}
    for entry in entries:
        ours[entry.row][entry.method] = (getattr(entry, claim.measure) if claim.measure else entry.ours).mean
        published = entry.paper if claim.measure in ("", experiment.measure) else math.nan
        papers[entry.row][entry.method] = published
        if _turned(claim, entry):
            for scores in (ours, papers):
                scores[entry.row][entry.method] *= -1
    of_paper = margins(claim, papers)
    by_place = margins(claim, ours)
    by_name = {(e.row, e.method): e for e in entries}
    of_attacks = claim.measure in ("", experiment.measure)  # whose intervals are those of the table's own score
    unclear = _unclear(claim, by_place, ours, by_name) if of_attacks else frozenset[str]()
    return Verdict(claim, by_place, {place: of_paper.get(place, math.nan) for place in by_place}, unclear)


def _turned(claim: Claim | Trend, entry: Entry) -> bool:
    """Whether a score counts with the other sign, as one does that is better when lower."""
    return isinstance(claim, Claim) and claim.measure != "stability" and entry.lower


def _unclear(
    claim: Claim | Trend, by_place: Mapping[str, float], scores: Scores, entries: Mapping[tuple[str, str], Entry]
) -> frozenset[str]:
    """The places whose margin's 95 % interval holds the least margin at which the claim is met.

    The interval is made of those of the scores, as Zou and Donner (Statistics in Medicine 2008) have it for differences
    of independent estimates: the distances to the ends add up by their squares. Scores without an interval add nothing.
    """
    unclear = set()
    for place, terms in claim.terms(scores).items():
        below, above = 0.0, 0.0
        for sign, row, method in terms:
            entry = entries[row, method]
            less, more = _distances(entry)
            if _turned(claim, entry) == (sign > 0):  # what is taken off, or is better when lower
                less, more = more, less
            below, above = math.hypot(below, less), math.hypot(above, more)
        if (below or above) and by_place[place] - below <= claim.by <= by_place[place] + above:
            unclear.add(place)
    return frozenset(unclear)


def _distances(entry: Entry) -> tuple[float, float]:
    """From a score to the ends of its 95 % interval; 0 where it has none."""
    if entry.bounds is None or math.isnan(entry.bounds.low) or math.isnan(entry.bounds.high):
        return 0.0, 0.0
    return max(0.0, entry.ours.mean - entry.bounds.low), max(0.0, entry.bounds.high - entry.ours.mean)
