"""Whether the runs bear out what a paper claims.

A claim holds in a row if the means over seeds do; a claim along rows holds at a step from one row to the next. It is
reproduced if it holds in every row, or at every step, that was run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from unskew.experiments.claims import Claim, Trend
from unskew.experiments.entries import Entry
from unskew.experiments.experiment import Experiment


@dataclass(frozen=True)
class Verdict:
    """A claim with its margin in points by row or step, negative where it is refuted. paper: the paper's own margins."""

    claim: Claim | Trend
    margins: dict[str, float]
    paper: dict[str, float]

    @property
    def held(self) -> int:
        """In how many rows, or at how many steps, the claim holds; a tie exceeds nothing."""
        return sum(margin > 0 and margin >= self.claim.by for margin in self.margins.values())

    @property
    def word(self) -> str:
        """`reproduced`, `reproduced in 2 of 3 rows`, `not reproduced` or `not run`."""
        if not self.margins:
            return "not run"
        if self.held == len(self.margins):
            return "reproduced"
        share = f"{self.held} of {len(self.margins)} {self.claim.places}"
        return f"reproduced in {share}" if self.held else "not reproduced"


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
        if isinstance(claim, Claim) and claim.measure != "stability" and entry.lower:
            for scores in (ours, papers):
                scores[entry.row][entry.method] *= -1
    margins, published_margins = claim.margins(ours), claim.margins(papers)
    return Verdict(claim, margins, {place: published_margins.get(place, math.nan) for place in margins})
