"""The plan of a reproduction: its rows and methods, the folders of its runs, an estimate of the time, and the
text that announces it.

The folder of a run is named after the run's settings, so that no run is repeated. The time is estimated from
one timed local step of each model and the number of steps.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from unskew import data
from unskew.comparison.progress import Cell, makers
from unskew.config import Settings
from unskew.core.method import Method
from unskew.data.samples.dataset import Dataset
from unskew.errors import DataError, UsageError
from unskew.experiments.experiment import Experiment, TableRow
from unskew.report.analysis.numbers import clock, plural
from unskew.runs.assemble import loop_of
from unskew.runs.resolve import dataset_of, method_text, parts_of, resolve


@dataclass(frozen=True)
class Selection:
    """The rows and methods to run.

    methods: the paper's names. missing: selected rows without data on this machine.
    """

    rows: tuple[TableRow, ...]
    methods: tuple[str, ...]
    missing: tuple[TableRow, ...] = ()


def with_methods(experiment: Experiment, methods: Sequence[str]) -> Experiment:
    """The experiment with further methods, each named by its text, such as "flea+scaffold" or "my_method.py".

    Raises UsageError: E102 for a text that is no method, E126 for a method that the experiment already has.
    """
    more: dict[str, str] = {}
    for text in methods:
        engine = method_text(text)
        if text in {*experiment.methods, *more} or engine in {*experiment.methods.values(), *more.values()}:
            raise UsageError(
                "E126", f"'{experiment.name}' already compares '{text}'; leave out --add {text}."
            )
        more[text] = engine
    return dataclasses.replace(experiment, methods={**experiment.methods, **more})


def select(experiment: Experiment, rows: Sequence[str] = (), methods: Sequence[str] = ()) -> Selection:
    """The named rows and methods, in the experiment's order; all of them if none is named.

    rows: names of rows, or prefixes of names. methods: the paper's names or ours.
    Raises UsageError (E126) for an unknown name, DataError (E402) if no selected row has its data here.
    """
    row_names = {name for text in rows for name in _rows_named(experiment, text)}
    method_names = {name for text in methods for name in _methods_named(experiment, text)}
    chosen = [row for row in experiment.rows if not rows or row.name in row_names]
    runnable = [row for row in chosen if row.has_data]
    if not runnable:
        missing = ", ".join(sorted({row.data for row in chosen}))
        raise DataError(
            "E402",
            f"the data of these rows are not here ({missing}); set UNSKEW_DATA to the folder that holds"
            " them.",
        )
    return Selection(
        rows=tuple(runnable),
        methods=tuple(name for name in experiment.methods if not methods or name in method_names),
        missing=tuple(row for row in chosen if not row.has_data),
    )


def _rows_named(experiment: Experiment, text: str) -> list[str]:
    """The row of this name, or else all rows with this prefix."""
    names = [row.name for row in experiment.rows]
    if text in names:
        return [text]
    return [name for name in names if name.startswith(text)] or [experiment.row(text).name]


def _methods_named(experiment: Experiment, name: str) -> list[str]:
    """The methods that the paper or the engine calls by this name."""
    names = [paper for paper, text in experiment.methods.items() if name.lower() in (paper.lower(), text)]
    if not names:
        known = ", ".join(experiment.methods)
        raise UsageError("E126", f"'{experiment.name}' does not compare '{name}'; it compares {known}.")
    return names


@dataclass(frozen=True)
class Key:
    """Identifies a run of a table. method: the paper's name."""

    row: str
    method: str
    seed: int


def plan_runs(
    experiment: Experiment, selection: Selection, seeds: Sequence[int], scale: float, folder: Path
) -> dict[Key, Cell]:
    """Every run of the selected rows and methods; keys with equal settings share one run.

    scale: the share of the rounds to run. folder: the folder of the runs of all tables.
    """
    runs: dict[Key, Cell] = {}
    by_path: dict[Path, Cell] = {}
    for seed in seeds:
        for row in selection.rows:
            for method in selection.methods:
                settings = experiment.settings_of(row, method, scale).replace(seed=seed)
                path = path_of(folder, settings)
                cell = by_path.setdefault(path, Cell(f"{row.name} {method}", seed, path, settings))
                runs[Key(row.name, method, seed)] = cell
    return runs


def path_of(folder: Path, settings: Settings) -> Path:
    """The folder of a run with these settings."""
    return folder / "cells" / settings.fingerprint()[:20]


def distinct_runs(runs: Mapping[Key, Cell]) -> list[Cell]:
    """The different runs, in order."""
    return list({cell.path: cell for cell in runs.values()}.values())


COST = {
    "fedmix": 3.0,
    "flea": 1.8,
    "moon": 1.7,
    "fedbr": 2.2,
    "fedntd": 1.35,
    "fedgen_images": 2.0,
    "fedfa": 1.4,
    "rebafl": 1.3,
}
"""The rough cost of a step with a Part as a multiple of FedAvg's step; 1 for all other Parts."""
SCORING_COST = 1 / 3
"""The cost of scoring a sample as a multiple of training on it: a forward pass without a backward pass."""


def seconds_for(runs: Collection[Settings], cores: int, seeds: int = 1) -> float:
    """Seconds for all runs with this number of seeds, one run at a time on each core."""
    return seeds * sum(seconds(s, _dataset(s.data)) for s in runs) / min(cores, max(1, seeds * len(runs)))


@lru_cache(4)
def _dataset(name: str) -> Dataset:
    return dataset_of(Settings(data=name))


def seconds(settings: Settings, dataset: Dataset) -> float:
    """Seconds that one run takes on one core."""
    samples, clients = _samples(settings, dataset), _clients(settings, dataset)
    per_sample = _seconds_per_sample(settings, dataset, min(settings.batch, max(1, samples // clients)))
    trained = samples * _cohort(settings.availability) * settings.passes
    scored = len(dataset.y_test) * settings.rounds / settings.eval_every
    return per_sample * (trained * _cost(settings.method) + scored * SCORING_COST)


def _samples(settings: Settings, dataset: Dataset) -> int:
    """The number of training samples of all clients."""
    if settings.skew.startswith("pathological") and "x" in settings.skew:
        classes, _, each = settings.skew.partition(":")[2].partition("x")
        return settings.clients * int(classes) * int(each)
    return min(len(dataset.y), (settings.samples or 10**9) * settings.clients)


def _clients(settings: Settings, dataset: Dataset) -> int:
    column = "domain" if settings.skew == "domain" else settings.skew.partition("column:")[2]
    return len(np.unique(dataset.columns[column])) if column in dataset.columns else settings.clients


def _cost(method: str) -> float:
    """The cost of a method's step as a multiple of FedAvg's."""
    parts = parts_of(method).parts
    return math.prod(COST.get(part.name, 1.0) for part in parts)


def _cohort(availability: str) -> float:
    """The share of clients that trains in a round; 1 if the availability does not state it."""
    kind, _, value = availability.split(",")[0].partition(":")
    try:
        share = float(value.split("x")[0].split("-")[0]) if kind != "full" else 1.0
    except ValueError:
        return 1.0
    return share if share <= 1 else 1.0


_step_times: dict[tuple[str, str, str, int], float] = {}


def _seconds_per_sample(settings: Settings, dataset: Dataset, batch: int) -> float:
    """Seconds on one core per sample of a local epoch; timed once per data set, model, loss and batch."""
    key = (settings.data, settings.model, settings.loss, batch)
    if key not in _step_times:
        _step_times[key] = _time(settings, dataset, batch)
    return _step_times[key]


def _time(settings: Settings, dataset: Dataset, batch: int) -> float:
    """Seconds per sample in the fastest of a few epochs of four clients with four batches each.

    The first epoch warms up and does not count. The minimum is used because other processes only ever slow
    an epoch down.
    """
    n = 4 * batch
    rows = np.arange(4 * n) % len(dataset.y)
    x, y = dataset.x[rows], dataset.y[rows]
    sample = data.arrays(x, y, x[:1], y[:1], classes=dataset.classes, layout="channels first")
    federation = data.build(sample, "iid", 4, np.random.default_rng(0), np.random.default_rng(1))
    step = Settings(
        model=settings.model, loss=settings.loss, batch=batch, epochs=1, clients=4, rounds=1, workers=1
    )
    loop = loop_of(resolve(step, federation, Method()))
    try:
        start = loop.down(loop.begin(), 1)
        loop.trainer.train(start, [0, 1, 2, 3], {})
        return _fastest(lambda: loop.trainer.train(start, [0, 1, 2, 3], {})) / (4 * n)
    finally:
        loop.trainer.close()


def _fastest(epoch: Callable[[], object]) -> float:
    """Seconds of the fastest of three epochs, or of those that begin within one second."""
    times: list[float] = []
    while len(times) < 3 and sum(times) < 1:
        before = time.perf_counter()
        epoch()
        times.append(time.perf_counter() - before)
    return min(times)


def table_outline(experiment: Experiment, selection: Selection) -> str:
    """Text that names the table, the rows to run, and the rows without data."""
    lines = [line for line in (experiment.title, experiment.paper) if line]
    lines += [f"row     {row.name}{': ' + row.note if row.note else ''}" for row in selection.rows]
    lines += [f"skipped {row.name}: its data ({row.data}) are not here" for row in selection.missing]
    return "\n".join(lines)


def tuning_outline(selection: Selection, trials: int) -> str:
    """Text with the number of tuning trials."""
    return (
        f"tuning  {plural(trials, 'trial')} for each of {plural(len(selection.methods), 'method')} on"
        f" {selection.rows[0].name}, scored on a fifth of the training samples; these runs are not part of"
        " the plan"
    )


def runs_outline(cells: Sequence[Cell], repeated: Collection[Path], scale: float, cores: int) -> str:
    """Text with the number of runs and the estimated time of the unfinished ones.

    repeated: finished runs that are run again.
    """
    left = [cell for cell in cells if cell.path in repeated or not cell.ended]
    share = f"; {scale:g} of the rounds" if scale != 1 else ""
    lines = [f"plan    {plural(len(cells), 'run')}, {len(cells) - len(left)} of them already done{share}"]
    if left:
        seconds = seconds_for([cell.settings for cell in left], cores)
        lines.append(
            f"time    about {clock(seconds)} on {plural(cores, 'core')}, estimated from one timed step of"
            " each model"
        )
    return "\n".join(lines)


def attacks_outline(left: int) -> str:
    """Text with the number of attacks, whose time the estimate leaves out; "" without attacks."""
    return f"attacks {left} on the finished runs, which take time beside what is estimated" if left else ""


def schedules_outline(changes: Sequence[str]) -> str:
    """Text with the schedules that a shortened run changes; "" without changes."""
    return f"ends    where the whole run ends: {', '.join(changes)}" if changes else ""


def versions_outline(paths: Sequence[Path], anew: bool) -> str:
    """Text with the number of runs by other versions of unskew, and whether they are repeated."""
    versions = ", ".join(f"{n} by {version}" for version, n in makers(paths).items())
    if anew:
        return f"older   {versions}; these are run again"
    return f"older   {versions}; these are kept, and continued if unfinished; --anew runs them again"
