"""A search for settings: the samplers, and a loop with the same number of trials for every method.

Settings are drawn from a grid in random order, or by Optuna, which can also search ranges. Trial n of a
method depends only on the scores of its trials before n, so neither the speed of processes nor an
interruption changes which settings are tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol

from unskew.errors import MissingPackage
from unskew.scores import kind

Point = dict[str, Any]
"""Maps each tuned setting to one value."""
Curve = Sequence[tuple[int, float]]
"""(round, score) pairs in the order of rounds."""
DIGITS = 3
"""Significant digits of a number that is drawn from a range; short numbers can be typed and cited."""


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included. log: search on a logarithmic scale."""

    low: float
    high: float
    log: bool

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}" + (", log scale" if self.log else "")

    def written(self, value: float) -> float:
        """The value rounded to three digits, clipped to the range."""
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)


Space = Mapping[str, Range | Sequence[Any]]
"""Maps each setting to its range or its list of values."""


class Sampler(Protocol):
    """Proposes points and receives their scores."""

    def ask(self) -> Point | None:
        """The next point to try; None once every point of a grid has been proposed."""
        ...

    def tell(self, point: Point, score: float, pruned: Curve | None = None) -> None:
        """Report the score of a proposed point. Higher is better; NaN is worse than every number.

        pruned: the curve of a trial that was ended early; None for a complete trial.
        """
        ...


class ParzenSampler:
    """Optuna's tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011), beginning with `first`.

    drawn: the number of random points before the estimator proposes points. The sampler is deterministic:
    equal scores lead to equal points.
    """

    def __init__(self, space: Space, first: Point, drawn: int = 10):
        optuna = optuna_package("the sampler tpe")
        self._space, self._first, self._pruned = space, first, optuna.trial.TrialState.PRUNED
        self._open: list[tuple[Point, Any]] = []
        sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=drawn)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._study.enqueue_trial(first)

    def ask(self) -> Point | None:
        trial = self._study.ask()
        point = {name: _suggest(trial, name, axis) for name, axis in self._space.items()}
        point = point if trial.number else dict(self._first)
        self._open.append((point, trial))
        return point

    def tell(self, point: Point, score: float, pruned: Curve | None = None) -> None:
        place = next(i for i, (asked, _) in enumerate(self._open) if asked == point)
        trial = self._open.pop(place)[1]
        if pruned is None and not math.isnan(score):
            self._study.tell(trial, score)
            return
        for t, value in pruned or ():  # a pruned trial without any score counts as worse than all others
            trial.report(value, t)
        self._study.tell(trial, state=self._pruned)


def _suggest(trial: Any, name: str, axis: Range | Sequence[Any]) -> Any:
    if isinstance(axis, Range):
        return axis.written(trial.suggest_float(name, axis.low, axis.high, log=axis.log))
    return trial.suggest_categorical(name, list(axis))


def optuna_package(what: str) -> ModuleType:
    """The package Optuna. what: the feature that needs it. Raises MissingPackage
    (E133)."""
    try:
        import optuna
    except ImportError as error:
        raise MissingPackage(what, "Optuna", "tune") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


@dataclass(frozen=True)
class Trial:
    """A finished trial. score: in the unit of `metric`, NaN if training diverged. pruned: whether the trial
    was ended early. curve: its score by round."""

    point: Point
    score: float
    metric: str = "accuracy"
    pruned: bool = False
    curve: Curve = ()

    @property
    def ahead(self) -> float:
        """The score with the sign that makes higher better."""
        return kind(self.metric).ahead(self.score, 0.0)

    @property
    def curve_ahead(self) -> Curve:
        """The curve with the sign that makes higher better."""
        return [(t, kind(self.metric).ahead(value, 0.0)) for t, value in self.curve]


@dataclass
class Trials:
    """The trials of one method, in order."""

    tried: list[Trial] = field(default_factory=list)

    @property
    def best(self) -> Point:
        """The first point with the best score; complete trials rank before trials that were ended early or
        diverged."""
        return max(self.tried, key=_rank).point

    @property
    def lost(self) -> bool:
        """Whether no trial has a score, so that `best` is the initial point."""
        return all(_rank(trial) == -math.inf for trial in self.tried)


def _rank(trial: Trial) -> float:
    return -math.inf if trial.pruned or math.isnan(trial.score) else trial.ahead


Train = Callable[[int, Mapping[str, Point], Mapping[str, Trials]], Mapping[str, Trial]]
"""(trial number from 1, a point for each method, the trials so far) -> the new trial of each method."""


def search(samplers: Mapping[str, Sampler], trials: int, train: Train) -> dict[str, Trials]:
    """Run `trials` trials of every method, or fewer if its grid is smaller."""
    all_trials = {method: Trials() for method in samplers}
    for number in range(1, trials + 1):
        points = {method: point for method in samplers if (point := samplers[method].ask()) is not None}
        for method, trial in train(number, points, all_trials).items():
            samplers[method].tell(trial.point, trial.ahead, trial.curve_ahead if trial.pruned else None)
            all_trials[method].tried.append(trial)
    return all_trials
