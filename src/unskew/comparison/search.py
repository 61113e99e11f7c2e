"""A search for settings: which of a method's numbers are searched and in which range, the sampler, and the
trials.

The searched settings and their ranges follow from the declarations of a method's Parts. The learning rate of
every method and reference is searched from a tenth of the comparison's value (at least lr_min) to ten times
that value. All numbers of a Part are searched, too, except

    values that the user wrote, in brackets or with --set, or that a preset stands for: the user's choice
    whole numbers, words, True and False: they mostly decide what is computed, sent or paid for
    zeros: 0 mostly disables something, and has no order of magnitude
    numbers that depend on another setting, if that setting is off
    settings that no score can choose: privacy, robustness, fairness, and the names in a Part's `untuned`

A number is searched logarithmically, from a tenth to ten times its value, within its declared range.

Trial n of a method depends only on the scores of its trials before n, so neither the speed of processes nor
an interruption changes which settings are tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import annotated_types as ranges

from unskew.comparison.progress import Cell
from unskew.core.part import Part
from unskew.errors import MissingPackage, UsageError
from unskew.formats import arguments
from unskew.formats.arguments import Argument
from unskew.methods import registry
from unskew.runs import resolve
from unskew.scores import kind

Point = dict[str, Any]
"""Maps each tuned setting to one value."""
DIGITS = 3
"""Significant digits of a number that is drawn from a range; short numbers can be typed and cited."""
FACTOR = 10.0
"""The factor by which the search may lower or raise a number."""
BOUND_MARGIN = 0.01
"""The distance of the search from an excluded bound, as a fraction of the way to it."""
UNTUNED_FAMILIES = {
    "privacy": "it decides what can be learned of clients",
    "robust": "no trial has clients that lie",
    "fairness": "the mean score knows nothing of fairness",
}
"""Families with settings that no score can choose, and the reason."""
MOST_DRAWN = 100
"""The number of points without a valid one after which a search gives up."""


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included, of which the order of magnitude is searched."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"

    def written(self, value: float) -> float:
        """The value rounded to three digits, clipped to the range."""
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)


@dataclass(frozen=True)
class MethodSpace:
    """The search space of a method. space: ranges by name, `lr` and `part.argument`. first: the present
    values. left_out: the other numbers, with the reason why each is not searched."""

    space: dict[str, Range]
    first: Point
    left_out: dict[str, str]

    def lines(self) -> list[str]:
        """One line per setting, such as `lr  0.005 to 0.5`."""
        return [f"{name} {axis}" for name, axis in self.space.items()]


def method_space(text: str, cell: Cell, chosen: Mapping[str, Mapping[str, Any]]) -> MethodSpace:
    """The search space of a method.

    text: the method as the user writes it. cell: one of its runs. chosen: arguments by Part from --set.
    """
    settings, method = cell.settings, cell.method_object()
    low = max(settings.lr / FACTOR, settings.lr_min)
    space, left_out = {"lr": Range(low, settings.lr * FACTOR)}, dict[str, str]()
    first: Point = {"lr": settings.lr}
    theirs = _named_arguments(text, cell, chosen)
    for part in method.parts:
        for argument in arguments.of(type(part)):
            name, value = f"{part.name}.{argument.name}", getattr(part, argument.name)
            if arguments.split_hint(argument.hint)[0] is not float:
                continue
            why = "it is given" if name in theirs else _why_not(part, argument)
            if why:
                left_out[name] = why
            else:
                space[name], first[name] = range_of(argument, value), value
    return MethodSpace(space, first, left_out)


def _named_arguments(text: str, cell: Cell, chosen: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """The arguments `part.argument` that the user chose: of Parts in Python those with another value than the
    default."""
    if cell.objects.method is not None:
        return {
            f"{part.name}.{argument.name}"
            for part in cell.method_object().parts
            for argument in arguments.of(type(part))
            if isinstance(value := getattr(part, argument.name), float) and value != argument.default
        }
    if resolve.pools(cell.settings):
        return set()
    return registry.named_arguments(text, resolve.arguments_for(text, chosen))


def _why_not(part: Part, argument: Argument) -> str:
    """The reason why a number is not searched; "" if it is searched."""
    if why := part.untuned.get(argument.name) or UNTUNED_FAMILIES.get(part.family):
        return why
    for needed in arguments.split_hint(argument.hint)[1]:
        if isinstance(needed, arguments.With) and not needed.holds(vars(part)):
            return f"it does not count with {needed.setting}={getattr(part, needed.setting)}"
    return "" if getattr(part, argument.name) > 0 else "it is 0"


def range_of(argument: Argument, value: float) -> Range:
    """The search range of a Part's number with the present value `value`."""
    low, high = value / FACTOR, value * FACTOR
    for item in arguments.split_hint(argument.hint)[1]:
        match item:
            case ranges.Ge(ge=bound):
                low = max(low, float(bound))  # type: ignore[arg-type]
            case ranges.Gt(gt=bound):
                low = max(low, float(bound) + BOUND_MARGIN * (value - float(bound)))  # type: ignore[arg-type]
            case ranges.Le(le=bound):
                high = min(high, float(bound))  # type: ignore[arg-type]
            case ranges.Lt(lt=bound):
                high = min(high, float(bound) - BOUND_MARGIN * (float(bound) - value))  # type: ignore[arg-type]
    return Range(low, high)


class ParzenSampler:
    """Optuna's tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011), beginning with `first`.

    drawn: the number of random points before the estimator proposes points. check: raises UsageError for a
    point with values that contradict each other, which is not proposed. The sampler is deterministic: equal
    scores lead to equal points.
    """

    def __init__(
        self,
        space: Mapping[str, Range],
        first: Point,
        drawn: int = 10,
        check: Callable[[Point], object] = lambda point: None,
    ):
        optuna = optuna_package("the sampler tpe")
        self._space, self._first, self._check = space, first, check
        self._pruned = optuna.trial.TrialState.PRUNED
        sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=drawn)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._study.enqueue_trial(first)
        self._trial: Any = None

    def ask(self) -> Point:
        """The next point to try. Raises UsageError (E109) if no point is valid."""
        for _ in range(MOST_DRAWN):
            trial = self._trial = self._study.ask()
            drawn = {
                name: axis.written(trial.suggest_float(name, axis.low, axis.high, log=True))
                for name, axis in self._space.items()
            }
            point = drawn if trial.number else dict(self._first)
            try:
                self._check(point)
                return point
            except UsageError:
                self.tell(math.nan)
        raise UsageError("E109", f"of {MOST_DRAWN} points that were drawn, none can be trained.")

    def tell(self, score: float) -> None:
        """Report the score of the last proposed point. Higher is better; NaN is worse than every number."""
        if math.isnan(score):
            self._study.tell(self._trial, state=self._pruned)
        else:
            self._study.tell(self._trial, score)


def optuna_package(what: str) -> ModuleType:
    """The package Optuna. what: the feature that needs it. Raises MissingPackage (E133)."""
    try:
        import optuna
    except ImportError as error:
        raise MissingPackage(what, "Optuna", "tune") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


@dataclass(frozen=True)
class Trial:
    """A finished trial. score: in the unit of `metric`, NaN if training diverged."""

    point: Point
    score: float
    metric: str = "accuracy"

    @property
    def rank(self) -> float:
        """Higher is better; trials that diverged come last."""
        return -math.inf if math.isnan(self.score) else self.gain

    @property
    def gain(self) -> float:
        """The score with the sign that makes higher better."""
        return kind(self.metric).ahead(self.score, 0.0)
