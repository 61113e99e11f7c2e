"""A comparison that first tunes every method, with an equal number of trials, and then runs the best
settings.

A trial is a run of its own in `tuning/METHOD/trial-001`. It trains on the data of the comparison without a
fifth of the training samples, which are held out for its score; no trial sees a test sample. Its seed differs
from all seeds of the comparison. `tuning.json` holds the results by method, so further seeds and methods do
not tune anything twice.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from unskew.comparison import plan as plans
from unskew.comparison.plan import NO_OBJECTS, ObjectsByLabel, Plan, check_begun, plan_cells, with_point
from unskew.comparison.progress import Cell, announce
from unskew.comparison.search import MethodSpace, ParzenSampler, Point, Trial, method_space, optuna_package
from unskew.comparison.training import train_all
from unskew.config import Settings
from unskew.errors import StateError, UsageError, excerpt
from unskew.report.analysis import runs, stats
from unskew.report.analysis.runs import TUNED, RunData, read_json
from unskew.runs import resolve
from unskew.runs.resolve import Objects
from unskew.system import disk

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
            announce(self.parent, cells.values())
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
        check_begun(tuning.trial(method, 1, space.first))
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
    """The best settings of each method of a tuned comparison; {} for a comparison without tuning."""
    methods: dict[str, Any] = read_json(parent / TUNED).get("methods", {})
    return {method: dict(entry["best"]) for method, entry in methods.items()}
