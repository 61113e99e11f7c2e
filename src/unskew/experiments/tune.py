"""An equal tuning budget for every method of a table: the same number of trials, scored on held-out training
samples.

For each method, the factor on its learning rate and the arguments of its own Parts are tuned. The first trial
is always the table's own setting. Trials run on the first selected row, with a seed that no table uses, so
that they see neither the test set nor the runs of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unskew.comparison.progress import Cell
from unskew.comparison.search import SAMPLERS, Point, Trial, Trials, search
from unskew.comparison.tuning import SEED, VALIDATION
from unskew.errors import UsageError
from unskew.experiments.entries import quantity_of, scores_of
from unskew.experiments.experiment import Experiment, TableRow
from unskew.experiments.plan import path_of
from unskew.experiments.result import TunedRecord
from unskew.methods import registry
from unskew.report.analysis import runs
from unskew.scores import KINDS

FACTOR = "lr factor"
FACTORS = (1.0, 0.3, 3.0)
GRIDS: dict[str, dict[str, list[Any]]] = {
    "fedprox": {"mu": [0.1, 0.01, 0.001]},
    "fedavgm": {"beta": [0.5, 0.7, 0.9]},
    "feddyn": {"alpha": [0.0001, 0.001, 0.01, 0.1]},
    "moon": {"mu": [0.1, 1.0, 5.0, 10.0]},
    "fedproto": {"lam": [0.1, 1.0, 10.0]},
    "feddecorr": {"beta": [0.01, 0.1, 0.3]},
    "fedlc": {"tau": [0.1, 0.5, 1.0]},
    "fedrs": {"alpha": [0.1, 0.5, 0.9]},
    "fedntd": {"beta": [0.3, 1.0, 3.0]},
    "fedbr": {"lam": [0.2, 0.8, 2.0]},
    "fedmix": {"lam": [0.05, 0.1, 0.2]},
    "flea": {"lambda1": [0.3, 1.0, 3.0], "lambda2": [0.0, 1.0, 3.0]},
    "rebafl": {"eps": [0.005, 0.01, 0.1], "mu": [0.1, 0.5, 1.0]},
    "feddpms": {"lam": [0.005, 0.05, 0.5]},
}
"""The values to try, by Part and argument; a table's own `grids` take precedence."""
Train = Callable[[Sequence[Cell]], None]
"""Trains runs that are not finished."""


@dataclass(frozen=True)
class Tuning:
    """How to tune.

    row: the row in which trials run. trials: the number of trials per method. sampler: a name in SAMPLERS.
    scale: the share of the rounds to run. folder: the folder of the runs of all tables.
    """

    row: TableRow
    methods: Sequence[str]
    trials: int
    sampler: str
    scale: float
    folder: Path


def space_of(experiment: Experiment, method: str, row: TableRow) -> tuple[dict[str, list[Any]], Point]:
    """(the values to choose from by name, the table's setting). Names are `lr factor` and `part.argument`.

    row: the row in which trials run. Arguments that its settings fix for a Part are left out.
    """
    space: dict[str, list[Any]] = {FACTOR: list(FACTORS)}
    first: Point = {FACTOR: 1.0}
    for part in experiment.parts(method):
        grid = experiment.grids.get(part.name) or GRIDS.get(part.name, {})
        for argument, values in grid.items():
            name, default = f"{part.name}.{argument}", getattr(part, argument)
            choices = [default, *(value for value in values if value != default)]
            texts = {
                with_points(experiment, {method: {FACTOR: 1.0, name: v}}).settings_of(row, method).method
                for v in choices
            }
            if len(texts) > 1:
                space[name], first[name] = choices, default
    return space, first


def tune_methods(
    experiment: Experiment, tuning: Tuning, train: Train
) -> tuple[Experiment, dict[str, Trials]]:
    """(the experiment with the settings of each method's best trial, all trials by method).

    Raises UsageError (E109) for an unknown sampler, and for a row that reports a measure or an attack, for
    which neither more nor less is better.
    """
    if not _is_score(experiment, tuning.row):
        text = (
            f"'{experiment.name}', row {tuning.row.name}, reports a measure or an attack, of which more is"
            " not better"
        )
        raise UsageError("E109", f"{text}, so it cannot be tuned; begin with another row (--rows).")
    if tuning.sampler not in SAMPLERS:
        raise UsageError("E109", f"sampler should be {' or '.join(SAMPLERS)}, got '{tuning.sampler}'.")
    samplers = {m: SAMPLERS[tuning.sampler](*space_of(experiment, m, tuning.row)) for m in tuning.methods}

    def run_trials(_: int, points: Mapping[str, Point], __: Mapping[str, Trials]) -> dict[str, Trial]:
        cells = {
            method: _cell(with_points(experiment, {method: p}), method, tuning)
            for method, p in points.items()
        }
        train(list(cells.values()))
        return {
            method: _trial_of(cell, experiment, tuning.row, points[method]) for method, cell in cells.items()
        }

    trials = search(samplers, tuning.trials, run_trials)
    return with_points(experiment, {method: t.best for method, t in trials.items()}), trials


def _is_score(experiment: Experiment, row: TableRow) -> bool:
    """Whether the row reports a score that is better when higher, or better when lower."""
    metric, scope = row.metric or experiment.metric, row.scope or experiment.scope
    if row.attack or scope == "attack":
        return False
    if scope == "measure":
        return metric.startswith("cross_site")
    return experiment.unit == "percent" or metric in (*KINDS, "mean", "worst")


def _trial_of(cell: Cell, experiment: Experiment, row: TableRow, point: Point) -> Trial:
    run = runs.read_run(cell.path, cell.method)
    return Trial(point, scores_of(run, experiment, row)["mean10"], quantity_of(experiment, row, run.metric))


def with_points(experiment: Experiment, points: Mapping[str, Point]) -> Experiment:
    """The experiment with other settings for some methods. points: by the paper's name of the method."""
    methods = dict(experiment.methods)
    for method, point in points.items():
        arguments: dict[str, dict[str, Any]] = {}
        for name, value in point.items():
            if name != FACTOR:
                part, _, argument = name.partition(".")
                arguments.setdefault(part, {})[argument] = value
        if arguments:
            methods[method] = str(registry.parse(methods[method], arguments))
    factors = {**experiment.factors, **{method: point[FACTOR] for method, point in points.items()}}
    return replace(experiment, methods=methods, factors=factors)


def tuned_records(experiment: Experiment, trials: Mapping[str, Trials]) -> dict[str, TunedRecord]:
    """The tuned settings and all trials by method. experiment: the result of `tune_methods`."""
    return {
        method: {
            "method": experiment.methods[method] + _factor(experiment.factors[method]),
            "trials": [{**trial.point, "score": trial.score} for trial in method_trials.tried],
        }
        for method, method_trials in trials.items()
    }


def _factor(factor: float) -> str:
    return f", lr x {factor:g}" if factor != 1 else ""


def _cell(experiment: Experiment, method: str, tuning: Tuning) -> Cell:
    settings = experiment.settings_of(tuning.row, method, tuning.scale)
    settings = settings.replace(seed=SEED, validation=VALIDATION)
    return Cell(f"tuning {method}", SEED, path_of(tuning.folder, settings), settings)
