"""A comparison that first tunes every method, with an equal number of trials, and then runs the best
settings.

A trial is a run of its own in `tuning/METHOD/trial-001`. It trains on the data of the comparison without a
fifth of the training samples, which are held out for its score; no trial sees a test sample. Its seed differs
from all seeds of the comparison. `tuning.json` holds the results by method, so further seeds and methods do
not tune anything twice.

The searched settings and their ranges follow from the declarations of a method's Parts. The learning rate of
every method and reference is searched from a tenth of the comparison's value (at least lr_min) to ten times
that value. All numbers of a Part are searched, too, except

    values that the user wrote, in brackets or with --set, or that a preset stands for: the user's choice
    whole numbers, words, True and False: they mostly decide what is computed, sent or paid for
    zeros: 0 mostly disables something, and has no order of magnitude
    numbers that depend on another setting, if that setting is off
    settings that no score can choose: privacy, robustness, fairness, and the names in a Part's `untuned`

A share (declared within 0 and 1) of at least 0.1 is searched linearly over its declared range. Any other
number is searched logarithmically, from a tenth to ten times its value, within its declared range.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import annotated_types as ranges

from unskew.comparison import plan as plans
from unskew.comparison.cluster import HERE
from unskew.comparison.plan import Plan, plan_cells, with_point
from unskew.comparison.progress import Cell, announce
from unskew.comparison.search import (
    ParzenSampler,
    Point,
    Range,
    Sampler,
    Trial,
    Trials,
    optuna_package,
    search,
)
from unskew.comparison.training import train_all
from unskew.config import Settings
from unskew.core.part import Part
from unskew.errors import StateError, UsageError, excerpt
from unskew.formats import arguments
from unskew.formats.arguments import Argument
from unskew.methods import registry
from unskew.report.analysis import runs, stats
from unskew.report.analysis.runs import TUNED, RunData, read_json
from unskew.runs import callbacks, resolve
from unskew.runs.run_folder import check_same
from unskew.system import disk

LR = "lr"
LR_FACTOR = 10.0
"""The factor by which the search may lower or raise a number."""
SMALL_SHARE = 0.1
"""Smaller shares are searched on a logarithmic scale."""
BOUND_MARGIN = 0.01
"""The distance of the search from an excluded bound, as a fraction of the whole range."""
UNTUNED_FAMILIES = {
    "privacy": "it decides what can be learned of clients",
    "robust": "no trial has clients that lie",
    "fairness": "the mean score knows nothing of fairness",
}
"""Families with settings that no score can choose, and the reason."""
GIVEN_REASON = "it is given"


@dataclass(frozen=True)
class MethodSpace:
    """The search space of a method. space: ranges by name, `lr` and `part.argument`. first: the present
    values. left_out: the other numbers, with the reason why each is not searched."""

    space: dict[str, Range]
    first: Point
    left_out: dict[str, str]

    def lines(self) -> list[str]:
        """One line per setting, such as `lr  0.005 to 0.5, log scale`."""
        return [f"{name} {axis}" for name, axis in self.space.items()]


def method_space(text: str, settings: Settings, chosen: Mapping[str, Mapping[str, Any]]) -> MethodSpace:
    """The search space of a method.

    text: the method as the user writes it. settings: the settings of its runs. chosen: arguments by Part from
    --set.
    """
    low = max(settings.lr / LR_FACTOR, settings.lr_min)
    space, left_out = {LR: Range(low, settings.lr * LR_FACTOR, log=True)}, dict[str, str]()
    first: Point = {LR: settings.lr}
    theirs = set[str]() if resolve.pools(settings) else registry.named_arguments(text, chosen)
    for part in resolve.parts_of(settings.method, settings.set).parts:
        values = {argument.name: getattr(part, argument.name) for argument in arguments.of(type(part))}
        for argument in arguments.of(type(part)):
            name, value = f"{part.name}.{argument.name}", values[argument.name]
            if arguments.split_hint(argument.hint)[0] is not float:
                continue
            if why := _why_not(part, argument, values, theirs):
                left_out[name] = why
            else:
                space[name], first[name] = range_of(argument, value), value
    return MethodSpace(space, first, left_out)


def _why_not(part: Part, argument: Argument, values: Mapping[str, Any], theirs: set[str]) -> str:
    """The reason why a number is not searched; "" if it is searched."""
    if f"{part.name}.{argument.name}" in theirs:
        return GIVEN_REASON
    if why := part.untuned.get(argument.name) or UNTUNED_FAMILIES.get(part.family):
        return why
    needed = [item for item in arguments.split_hint(argument.hint)[1] if isinstance(item, arguments.With)]
    if any(not item.holds(values) for item in needed):
        return f"it does not count with {needed[0].setting}={values[needed[0].setting]}"
    return "" if values[argument.name] > 0 else "it is 0"


def range_of(argument: Argument, value: float) -> Range:
    """The search range of a Part's number with the present value `value`."""
    low, high, open_low, open_high = _bounds(argument)
    if value >= SMALL_SHARE and low >= 0 and high <= 1:
        margin = BOUND_MARGIN * (high - low)
        low, high = low + margin * open_low, high - margin * open_high
        return Range(min(low, value), max(high, value), log=False)
    low = low + BOUND_MARGIN * (value - low) if open_low else low
    high = high - BOUND_MARGIN * (high - value) if open_high else high
    return Range(max(value / LR_FACTOR, low), min(value * LR_FACTOR, high), log=True)


def _bounds(argument: Argument) -> tuple[float, float, bool, bool]:
    """(lowest, highest, whether the lowest is excluded, whether the highest is excluded)."""
    low, high, open_low, open_high = float("-inf"), float("inf"), False, False
    for item in arguments.split_hint(argument.hint)[1]:
        match item:
            case ranges.Ge(ge=bound):
                low = bound
            case ranges.Gt(gt=bound):
                low, open_low = bound, True
            case ranges.Le(le=bound):
                high = bound
            case ranges.Lt(lt=bound):
                high, open_high = bound, True
    return float(low), float(high), open_low, open_high  # type: ignore[arg-type]


SEED, VALIDATION = 10_000, 0.2
FOLDER = "tuning"
TRIAL_SETTINGS = {"measure": "none", "metrics": "none", "track": "none", "keep_best": False}
"""Settings that trials override: they do not change a run's result, and trials need no such output."""
Look = Callable[[list[Cell]], None]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Tuning:
    """The tuning that a comparison asks for. parent: its folder."""

    parent: Path
    plan: Plan

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """One run per method, with the method's own settings and the seed of the trials."""
        place = self.parent / FOLDER
        return {
            cell.method: cell for cell in plan_cells(place, self.plan.methods, [SEED], self.plan.settings)
        }

    @cached_property
    def spaces(self) -> dict[str, MethodSpace]:
        chosen = self.plan.settings.get("set") or {}
        return {
            m: method_space(m, cell.settings, resolve.arguments_for(m, chosen))
            for m, cell in self.cells.items()
        }

    @property
    def startup(self) -> int:
        """The number of random trials per method, which are complete before a trial can be pruned."""
        return max(2, self.plan.tune // 4)

    @property
    def warmup(self) -> int:
        """The first round in which a trial can be pruned."""
        return max(1, self.settings.rounds // 4)

    @property
    def settings(self) -> Settings:
        return next(iter(self.cells.values())).settings

    def trial(self, method: str, number: int, point: Mapping[str, Any]) -> Cell:
        """One trial in its own folder. Raises UsageError for a point with values that contradict each
        other."""
        cell = self.cells[method]
        settings = with_point(cell.settings.replace(validation=VALIDATION, **TRIAL_SETTINGS), point)
        path = self.parent / FOLDER / disk.slug(method) / f"trial-{number:03d}"
        return Cell(f"tuning {method}", SEED, path, settings)

    def rehearsed(self) -> list[Cell]:
        """The runs to check before training: every method with its own settings, and its first trial."""
        return [*self.cells.values(), *(self.trial(m, 1, self.spaces[m].first) for m in self.cells)]

    def outline(self) -> list[str]:
        """Lines that describe the planned trials."""
        rounds = self.settings.rounds
        lines = [
            f"tune   {self.plan.tune} trials for each of {len(self.cells)} methods x {rounds} rounds, scored"
            f" on {VALIDATION:.0%} of the training samples; from round {self.warmup} on, a trial below the"
            " median ends early"
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
        check_place(self.plan)
        samplers: dict[str, Sampler] = {
            m: _ValidPoints(ParzenSampler(self.spaces[m].space, self.spaces[m].first, self.startup), self, m)
            for m in missing
        }

        def train(number: int, points: Mapping[str, Point], before: Mapping[str, Trials]) -> dict[str, Trial]:
            say(f"tuning, trial {number} of {self.plan.tune} of each method")
            cells = {method: self.trial(method, number, point) for method, point in points.items()}
            for method, cell in cells.items():
                self._judge(method, before[method]).write(cell.path)
            announce(self.parent, cells.values())
            train_all(list(cells.values()), self.plan.processes, look)
            return {method: self._ended(method, cell, points[method]) for method, cell in cells.items()}

        tried = search(samplers, self.plan.tune, train)
        for method in (m for m, trials in tried.items() if trials.lost):
            say(f"tuning, {method}: training diverged in every trial, so its settings stay as they are")
        self._write(tried)

    def _judge(self, method: str, before: Trials) -> callbacks.PruningRule:
        finished = [list(trial.curve) for trial in before.tried if not trial.pruned]
        return callbacks.PruningRule(self._own(method), self.startup, self.warmup, finished)

    def _own(self, method: str) -> bool:
        """Whether a method trains clients' own models."""
        settings = self.cells[method].settings
        its = resolve.parts_of(settings.method, settings.set)
        return any(p.family == "personalised" or p.personal for p in its.parts) or not resolve.sends_weights(
            its
        )

    def _ended(self, method: str, cell: Cell, point: Point) -> Trial:
        run = runs.read_run(cell.path, method)
        scope, metric = _trial_score(run, self._own(method))
        curve = [(int(t), float(v)) for t, v in zip(*run.series(scope, metric)) if t > 0 and math.isfinite(v)]
        pruned = any(
            str(event.get("text", "")).startswith(f"{callbacks.Pruning.name}: ") for event in run.events
        )
        by_last = self.settings.rounds < stats.SHORT_RUN
        return Trial(point, stats.final(run, by_last, scope, metric), run.metric, pruned, curve)

    def _write(self, tried: Mapping[str, Trials]) -> None:
        methods = self.record()
        for method, trials in tried.items():
            space = self.spaces[method]
            methods[method] = {
                "asked": self.asked(method),
                "metric": trials.tried[0].metric,
                "own": self._own(method),
                "space": {name: asdict(axis) for name, axis in space.space.items()},
                "left_out": space.left_out,
                "best": trials.best,
                "trials": [_as_json(trial) for trial in trials.tried],
            }
        facts = {
            "trials": self.plan.tune,
            "seed": SEED,
            "validation": VALIDATION,
            "rounds": self.settings.rounds,
        }
        facts |= {"startup": self.startup, "warmup": self.warmup, "methods": methods}
        disk.replace(self.parent / TUNED, json.dumps(facts, indent=1))


def _as_json(trial: Trial) -> dict[str, Any]:
    return asdict(trial) | {"score": None if math.isnan(trial.score) else trial.score}


class _ValidPoints:
    """Proposes only points with consistent values, such as two thresholds in the right order."""

    most = 100

    def __init__(self, sampler: Sampler, tuning: Tuning, method: str):
        self._sampler, self._tuning, self._method = sampler, tuning, method

    def ask(self) -> Point | None:
        for _ in range(self.most):
            point = self._sampler.ask()
            assert point is not None
            try:
                self._tuning.trial(self._method, 1, point)
                return point
            except UsageError:
                self._sampler.tell(point, float("nan"))
        raise UsageError(
            "E109", f"of {self.most} points that were drawn for {self._method}, none can be trained."
        )

    def tell(self, point: Point, score: float, pruned: Any = None) -> None:
        self._sampler.tell(point, score, pruned)


def _trial_score(run: RunData, own: bool) -> tuple[str, str]:
    """(scope, metric) of the score that compares trials, equal to that of `pruning.scored` for a run in
    progress."""
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


def check_place(plan: Plan) -> None:
    """Raises UsageError (E109) for trials that would train on another machine."""
    if plan.on != HERE:
        text = "--tune trains its trials on this machine only, so it does not go with --on"
        raise UsageError(
            "E109", f"{text}; leave one of them out. A comparison that is tuned can be resumed with --on."
        )


def tuning_of(parent: Path, plan: Plan) -> Tuning | None:
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
    tuning = Tuning(parent, plan)
    if tuning.missing():
        check_place(plan)
    for method, space in tuning.spaces.items():
        first = tuning.trial(method, 1, space.first)
        if (first.path / "config.yaml").exists():
            check_same(first.path, first.settings)
    return tuning


def cells_of(parent: Path, plan: Plan, look: Look, say: Say) -> list[Cell]:
    """The runs of a comparison; its methods are tuned first if the plan asks for it."""
    if (tuning := tuning_of(parent, plan)) is None:
        return plan_cells(parent, plan.methods, plan.seeds, plan.settings)
    tuning.run(look, say)
    return cells_of_tuned(parent, plan)


def cells_of_tuned(parent: Path, plan: Plan) -> list[Cell]:
    """The runs of a comparison, with the best settings of its tuning if there are any."""
    return plan_cells(parent, plan.methods, plan.seeds, plan.settings, best_settings(parent))


def best_settings(parent: Path) -> dict[str, Point]:
    """The best settings of each method of a tuned comparison; {} for a comparison without tuning."""
    methods: dict[str, Any] = read_json(parent / TUNED).get("methods", {})
    return {method: dict(entry["best"]) for method, entry in methods.items()}
