"""The same number of trials for every method, one trial of each at a time.

Trial n of a method is chosen by what its trials before n have scored, and by nothing else, so neither the pace of
processes nor a kill changes which settings are tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from unskew.scores import kind
from unskew.tuning.samplers import Curve, Point, Sampler


@dataclass(frozen=True)
class Trial:
    """One trial that was trained. score: in the unit of `metric`, NaN if its training diverged. pruned: whether it was ended
    early. curve: its score by round."""

    point: Point
    score: float
    metric: str = "accuracy"
    pruned: bool = False
    curve: Curve = ()

    @property
    def ahead(self) -> float:
        """The score, so that more is better."""
        return kind(self.metric).ahead(self.score, 0.0)

    @property
    def curve_ahead(self) -> Curve:
        """The curve, likewise."""
        return [(t, kind(self.metric).ahead(value, 0.0)) for t, value in self.curve]


@dataclass
class Trials:
    """The trials of one method, in their order."""

    tried: list[Trial] = field(default_factory=list)

    @property
    def best(self) -> Point:
        """The first point with the best score; one that was ended early or diverged is never chosen over another."""
        return max(self.tried, key=_rank).point

    @property
    def lost(self) -> bool:
        """Whether no trial has a score, so that `best` is what there was before."""
        return all(_rank(trial) == -math.inf for trial in self.tried)


def _rank(trial: Trial) -> float:
    return -math.inf if trial.pruned or math.isnan(trial.score) else trial.ahead


Train = Callable[[int, Mapping[str, Point], Mapping[str, Trials]], Mapping[str, Trial]]
"""(the trial's number from 1, a point for each method, the trials so far) -> what became of it, for each method."""


def search(samplers: Mapping[str, Sampler], trials: int, train: Train) -> dict[str, Trials]:
    """Try so many points of every method, fewer only where its grid has no more."""
    all_trials = {method: Trials() for method in samplers}
    for number in range(1, trials + 1):
        points = {method: point for method in samplers if (point := samplers[method].ask()) is not None}
        for method, trial in train(number, points, all_trials).items():
            samplers[method].tell(trial.point, trial.ahead, trial.curve_ahead if trial.pruned else None)
            all_trials[method].tried.append(trial)
    return all_trials
