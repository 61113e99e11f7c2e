"""A comparison that first tunes every method, with an equal number of trials, and then runs the best
settings.

A trial is a run of its own in `tuning/METHOD/trial-001`. It trains on the data of the comparison without a
fifth of the training samples, which are held out for its score; no trial sees a test sample. Its seed differs
from all seeds of the comparison. `tuning.json` holds the results by method, so further seeds and methods do
not tune anything twice. Trial n depends only on the scores of its method's trials before n, so neither the
speed of processes nor an interruption changes which settings are tried.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import annotated_types as ranges

from unskew.comparison import plan as plans
from unskew.comparison.plan import NO_OBJECTS, ObjectsByLabel, Plan, check_started, plan_cells, with_point
from unskew.comparison.progress import Cell
from unskew.comparison.training import train_all
from unskew.config import Settings
from unskew.core.part import Part
from unskew.errors import MissingPackage, StateError, UsageError, excerpt
from unskew.formats import arguments
from unskew.formats.arguments import Argument
from unskew.methods import registry
from unskew.report.analysis import runs, stats
from unskew.report.analysis.runs import TUNED, RunData, read_json
from unskew.runs import resolve
from unskew.runs.resolve import Objects
from unskew.scores import kind
from unskew.system import disk

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

    The learning rate is searched from a tenth of the comparison's value (at least lr_min) to ten times that
    value, and all numbers of a Part likewise, within their declared range, except

        values that the user wrote, in brackets or with --set, or that a preset stands for: the user's choice
        whole numbers, words, True and False: they mostly decide what is computed, sent or paid for
        zeros: 0 mostly disables something, and has no order of magnitude
        numbers that depend on another setting, if that setting is off
        settings that no score can choose: privacy, robustness, fairness, and the names in a Part's `untuned`

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


SEED, VALIDATION = 10_000, 0.2
FOLDER = "tuning"
TRIAL_SETTINGS = {"measure": "none", "metrics": "none", "track": "none", "keep_best": False}
"""Settings that trials override: they do not change a run's result, and trials need no such output."""
Look = Callable[[list[Cell]], None]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Tuning:
    """The tuning that a comparison asks for. parent: its folder. objects: as for `plan_cells`."""

    parent: Path
    plan: Plan
    objects: ObjectsByLabel = field(default_factory=dict[str, Objects])

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """One run per method, with the method's own settings and the seed of the trials."""
        plan = replace(self.plan, seeds=(SEED,))
        return {cell.method: cell for cell in plan_cells(self.parent / FOLDER, plan, self.objects)}

    @cached_property
    def spaces(self) -> dict[str, MethodSpace]:
        chosen = self.plan.settings.get("set") or {}
        return {
            label: method_space(self.plan.text_of(label), cell, chosen) for label, cell in self.cells.items()
        }

    @property
    def startup(self) -> int:
        """The number of random trials per method, before the estimator chooses."""
        return max(2, self.plan.tune // 4)

    @property
    def settings(self) -> Settings:
        return next(iter(self.cells.values())).settings

    def trial(self, method: str, number: int, point: Mapping[str, Any]) -> Cell:
        """One trial in its own folder. Raises UsageError for a point with values that contradict each
        other."""
        cell = self.cells[method]
        settings = cell.settings.replace(validation=VALIDATION, **TRIAL_SETTINGS)
        path = self.parent / FOLDER / disk.slug(method) / f"trial-{number:03d}"
        return with_point(replace(cell, method=f"tuning {method}", path=path, settings=settings), point)

    def rehearsed(self) -> list[Cell]:
        """The runs to check before training: every method with its own settings, and its first trial."""
        return [*self.cells.values(), *(self.trial(m, 1, self.spaces[m].first) for m in self.cells)]

    def outline(self) -> list[str]:
        """Lines that describe the planned trials."""
        rounds = self.settings.rounds
        lines = [
            f"tune   {self.plan.tune} trials for each of {len(self.cells)} methods x {rounds} rounds, scored"
            f" on {VALIDATION:.0%} of the training samples"
        ]
        for method, space in self.spaces.items():
            lines.append(f"       {method}: {'; '.join(space.lines())}")
            if space.left_out:
                left = "; ".join(f"{name} ({why})" for name, why in space.left_out.items())
                lines.append(f"       {method}, as it is: {left}")
        return lines

    def asked(self, method: str) -> str:
        """A digest of all inputs on which the trials of a method depend."""
        first = self.trial(method, 1, self.spaces[method].first).settings
        facts = [self.plan.tune, first.fingerprint(), self.spaces[method].lines()]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    def record(self) -> dict[str, Any]:
        """The results of tuned methods, by method.

        Raises StateError: E112 if they were tuned with other inputs, E111 for a damaged file.
        """
        methods: dict[str, Any] = read_json(self.parent / TUNED).get("methods", {})
        for method in self.cells:
            if method in methods and methods[method].get("asked") != self.asked(method):
                text = (
                    f"{self.parent} tuned {method} with other settings, data or ranges than are asked for now"
                )
                raise StateError(
                    "E112", f"{text}. Choose another --name, or resume it with its own settings."
                )
        return methods

    def missing(self) -> list[str]:
        """The methods that are not tuned yet."""
        known = self.record()
        return [method for method in self.cells if method not in known]

    def run(self, look: Look, say: Say) -> None:
        """Tune the remaining methods, and write tuning.json. An interrupted tuning continues."""
        if not (missing := self.missing()):
            return
        samplers = {method: self._sampler(method) for method in missing}
        tried: dict[str, list[Trial]] = {method: [] for method in missing}
        for number in range(1, self.plan.tune + 1):
            say(f"tuning, trial {number} of {self.plan.tune} of each method")
            points = {method: sampler.ask() for method, sampler in samplers.items()}
            cells = {method: self.trial(method, number, point) for method, point in points.items()}
            train_all(list(cells.values()), self.plan.processes, look)
            for method, cell in cells.items():
                trial = self._ended(method, cell, points[method])
                samplers[method].tell(trial.gain)
                tried[method].append(trial)
        for method, trials in tried.items():
            if all(trial.rank == -math.inf for trial in trials):
                say(f"tuning, {method}: training diverged in every trial, so its settings stay as they are")
        self._write(tried)

    def _sampler(self, method: str) -> ParzenSampler:
        space = self.spaces[method]
        return ParzenSampler(
            space.space, space.first, self.startup, lambda point: self.trial(method, 1, point)
        )

    def _own(self, method: str) -> bool:
        """Whether a method trains clients' own models."""
        its = self.cells[method].method_object()
        return any(p.family == "personalised" or p.personal for p in its.parts) or not resolve.sends_weights(
            its
        )

    def _ended(self, method: str, cell: Cell, point: Point) -> Trial:
        run = runs.read_run(cell.path, method)
        scope, metric = _trial_score(run, self._own(method))
        by_last = self.settings.rounds < stats.SHORT_RUN
        return Trial(point, stats.final(run, by_last, scope, metric), run.metric)

    def _write(self, tried: Mapping[str, Sequence[Trial]]) -> None:
        methods = self.record()
        for method, trials in tried.items():
            space = self.spaces[method]
            methods[method] = {
                "asked": self.asked(method),
                "metric": trials[0].metric,
                "own": self._own(method),
                "space": {name: asdict(axis) for name, axis in space.space.items()},
                "left_out": space.left_out,
                "best": max(trials, key=lambda trial: trial.rank).point,
                "trials": [_as_json(trial) for trial in trials],
            }
        facts = {
            "trials": self.plan.tune,
            "seed": SEED,
            "validation": VALIDATION,
            "rounds": self.settings.rounds,
        }
        facts |= {"startup": self.startup, "methods": methods}
        disk.replace(self.parent / TUNED, json.dumps(facts, indent=1))


def _as_json(trial: Trial) -> dict[str, Any]:
    return asdict(trial) | {"score": None if math.isnan(trial.score) else trial.score}


def _trial_score(run: RunData, own: bool) -> tuple[str, str]:
    """(scope, metric) of the score that compares trials. own: of clients' own models, if scored."""
    has_own, has_global = (
        len(run.series(*pair)[0]) for pair in (("personal@client", "mean"), ("global", run.metric))
    )
    return ("personal@client", "mean") if (own and has_own) or not has_global else ("global", run.metric)


def trials_of(tune: object) -> int:
    """The number of trials that `tune` asks for; 0 for None.

    Raises UsageError (E109) for anything but a number of at least 2.
    """
    if tune is None:
        return 0
    if isinstance(tune, bool) or not isinstance(tune, int) or tune < 2:
        first = "the first trial is the settings as they are"
        raise UsageError("E109", f"tune must be a whole number, at least 2 ({first}); got {excerpt(tune)}.")
    return tune


def tuning_of(parent: Path, plan: Plan, objects: ObjectsByLabel = NO_OBJECTS) -> Tuning | None:
    """The tuning that a plan asks for; None if it asks for none. Nothing is written.

    Raises UsageError (E109) for a plan that cannot be tuned, and StateError (E112) for a folder with a
    comparison that was tuned with other inputs.
    """
    if plan.tune or (parent / TUNED).exists() or (parent / FOLDER).exists():
        before = plans.read_plan(parent).tune if (parent / plans.FILE).exists() else plan.tune
        if before != plan.tune:
            was, now = (f"with {n} trials" if n else "without tuning" for n in (before, plan.tune))
            raise StateError("E112", f"{parent} began {was}, and is asked for {now}. Choose another --name.")
    if not plan.tune:
        return None
    if plan.settings.get("validation"):
        text = (
            f"--tune holds out {VALIDATION:.0%} of the training samples itself, and the comparison is scored"
            " on the test set"
        )
        raise UsageError("E109", f"{text}; leave validation out.")
    if SEED in plan.seeds:
        raise UsageError(
            "E109", f"seed {SEED} is that of the trials, which must not see a comparison's runs."
        )
    optuna_package("--tune")
    tuning = Tuning(parent, plan, objects)
    tuning.record()
    for method, space in tuning.spaces.items():
        check_started(tuning.trial(method, 1, space.first))
    return tuning


def planned_runs(
    parent: Path, plan: Plan, tuning: Tuning | None, objects: ObjectsByLabel = NO_OBJECTS
) -> list[Cell]:
    """The runs of a plan to check before training: those of its tuning, or its own."""
    return tuning.rehearsed() if tuning else plan_cells(parent, plan, objects)


def cells_of(
    parent: Path, plan: Plan, look: Look, say: Say, objects: ObjectsByLabel = NO_OBJECTS
) -> list[Cell]:
    """The runs of a comparison; its methods are tuned first if the plan asks for it."""
    if tuning := tuning_of(parent, plan, objects):
        tuning.run(look, say)
    return plan_cells(parent, plan, objects, best_settings(parent))


def best_settings(parent: Path) -> dict[str, Point]:
    """The best settings of each method of a tuned comparison; {} for a comparison without tuning. Raises
    UsageError (E111) for other values than a tuning chooses."""
    methods: dict[str, Any] = read_json(parent / TUNED).get("methods", {})
    points: dict[str, Point] = {method: dict(entry["best"]) for method, entry in methods.items()}
    for name, value in (pair for point in points.values() for pair in point.items()):
        if not (name == "lr" or "." in name) or not isinstance(value, float | int):
            text = f"{parent / TUNED} sets {excerpt(name)} to {excerpt(str(value))}, which no tuning chooses"
            raise UsageError("E111", f"{text}; remove this file to tune anew.")
    return points
