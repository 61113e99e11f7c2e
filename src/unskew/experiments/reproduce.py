"""`unskew.reproduce`: run a published table, compare it with the paper's numbers, and store the result."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from unskew.comparison import progress, training
from unskew.comparison.plan import dry_run
from unskew.comparison.progress import Cell
from unskew.errors import DataError, UsageError
from unskew.experiments import Request, pages
from unskew.experiments.experiment import Experiment, TableRow, distinct_changes
from unskew.experiments.files import read_experiment
from unskew.experiments.pages import TableNumbers
from unskew.experiments.result import TableResult, make_findings, missing_findings, result_of
from unskew.formats import arguments
from unskew.report.analysis.number_formats import plural
from unskew.report.analysis.runs import RunData, read_run
from unskew.round.precision import torch_defaults
from unskew.runs.resolve import method_text
from unskew.system import python_files
from unskew.system.disk import check_name
from unskew.version import revision

Say = Callable[[str], None]
"""Receives lines for the screen."""
Watch = Callable[[list[Cell]], None]
"""Receives the state of the runs in progress, a few times a second."""


@dataclass(frozen=True)
class Selection:
    """The rows and methods to run.

    methods: the paper's names. missing: selected rows without data on this machine.
    """

    rows: tuple[TableRow, ...]
    methods: tuple[str, ...]
    missing: tuple[TableRow, ...] = ()


@dataclass(frozen=True)
class Reproduction(TableNumbers[TableResult | None]):
    """A table that was run, or only planned.

    runs: every run once. result: all numbers, verdicts and curves, as stored in JSON. page: the path of the
    page. `result` and `page` are None after a dry run.
    """

    experiment: Experiment
    selection: Selection
    runs: tuple[Cell, ...]
    result: TableResult | None = None
    page: Path | None = None


@python_files.restricted
@torch_defaults()
def reproduce(
    table: str | Path,
    *,
    rows: Sequence[str] = (),
    methods: Sequence[str] = (),
    add: Sequence[str] = (),
    file: Sequence[str] = (),
    seeds: int = 3,
    scale: float = 1.0,
    processes: int = 0,
    folder: str | Path = "runs",
    keep: str | Path | None = None,
    page: str = "",
    anew: bool = False,
    dry_run: bool = False,
    say: Say = lambda text: None,
    watch: Watch = lambda runs: None,
) -> Reproduction:
    """Run a published table, or one of your own. Finished runs are stored and never run twice.

    table: a name such as "flea-table1", or the path of a .yaml file.
    rows, methods: run only these. add: further methods to run.
    file: the Python files that the table names, because a file is only imported if the caller names it.
    seeds: the number of seeds, counted from 0. scale: the share of the rounds to run, in (0, 1].
    processes: the number of runs at a time; 0 for one on each core.
    folder: the folder of runs and pages. keep: a documentation folder that receives the result as well.
    page: the name of the result's files. anew: repeat the runs that another version of unskew made.
    dry_run: plan the runs without training. say: receives a text that describes the plan.
    watch: receives the state of the runs, a few times a second.

    Raises UnskewError, before any training, for a table, row, method or setting that does not exist or cannot
    run.
    """
    options = {"rows": rows, "methods": methods, "add": add, "file": file, "seeds": seeds, "scale": scale}
    options |= {"processes": processes, "page": page, "anew": anew, "dry_run": dry_run}
    checked = arguments.check(Request, options, "reproduce", "E109")
    places = {"folder": Path(folder).expanduser(), "keep": Path(keep).expanduser() if keep else None}
    request = Request(os.path.expanduser(table), **places, **checked)
    return carry_out(request, say, watch)


def carry_out(request: Request, say: Say, watch: Watch) -> Reproduction:
    """Run a checked request. Returns the same as `reproduce`."""
    scale, began = request.scale, time.monotonic()
    experiment = with_methods(read_experiment(request.table), request.add)
    page = check_name(request.page or experiment.name)
    selection = select(experiment, request.rows, [*request.methods, *request.add] if request.methods else ())
    folder = request.folder / "reproduce"
    say(_outline(experiment, selection))
    dry_run(plan_runs(experiment, selection, range(1), scale, folder).values())
    runs = plan_runs(experiment, selection, range(request.seeds), scale, folder)
    cells = distinct_runs(runs)
    schedules = distinct_changes(
        (experiment.settings_of(experiment.row(key.row), key.method), cell.settings)
        for key, cell in runs.items()
    )
    say(_outline_of_runs(cells, schedules, request))
    attacked = [(experiment.row(key.row), cell) for key, cell in runs.items()]
    if missing := missing_findings(attacked):
        say(f"attacks {missing} on the finished runs")
    reproduction = Reproduction(experiment, selection, tuple(cells))
    if request.dry_run:
        return reproduction
    if request.anew:
        progress.discard(progress.runs_by_other_versions(cell.path for cell in cells))
    training.train_all(cells, request.processes, watch)
    make_findings(attacked, say)
    facts: dict[str, Any] = {"page": page, "command": request.command, "seeds": request.seeds, "scale": scale}
    if scale != 1:
        facts["schedules"] = schedules
    result = _result(experiment, runs, facts | {"seconds_now": round(time.monotonic() - began, 1)})
    if request.keep:
        pages.write_result(request.keep, result)
    return replace(reproduction, result=result, page=pages.write_result(folder / "pages", result))


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
    return replace(experiment, methods={**experiment.methods, **more})


def select(experiment: Experiment, rows: Sequence[str] = (), methods: Sequence[str] = ()) -> Selection:
    """The named rows and methods, in the experiment's order; all of them if none is named. The method that
    others are divided by is always among them.

    rows: names of rows, or prefixes of names. methods: the paper's names or ours.
    Raises UsageError (E126) for an unknown name, DataError (E402) if no selected row has its data here.
    """
    row_names = {name for text in rows for name in _rows_named(experiment, text)}
    method_names = {experiment.base, *(n for text in methods for n in _methods_named(experiment, text))}
    chosen = [row for row in experiment.rows if not rows or row.name in row_names]
    runnable = [row for row in chosen if row.has_data]
    if not runnable:
        missing = ", ".join(sorted({row.data for row in chosen}))
        text = f"the data of these rows are not here ({missing})"
        raise DataError("E402", f"{text}; set UNSKEW_DATA to the folder that holds them.")
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
                path = folder / "cells" / settings.fingerprint()[:20]
                cell = by_path.setdefault(path, Cell(f"{row.name} {method}", seed, path, settings))
                runs[Key(row.name, method, seed)] = cell
    return runs


def distinct_runs(runs: Mapping[Key, Cell]) -> list[Cell]:
    """The different runs, in order."""
    return list({cell.path: cell for cell in runs.values()}.values())


def _outline(experiment: Experiment, selection: Selection) -> str:
    """Text that names the table, the rows to run, and the rows without data."""
    lines = [line for line in (experiment.title, experiment.paper) if line]
    lines += [f"row     {row.name}{': ' + row.note if row.note else ''}" for row in selection.rows]
    lines += [f"skipped {row.name}: its data ({row.data}) are not here" for row in selection.missing]
    return "\n".join(lines)


def _outline_of_runs(cells: Sequence[Cell], schedules: Sequence[str], request: Request) -> str:
    """Text with the number of runs, the schedules that `scale` shortened, and the runs made by other versions
    of unskew."""
    older = progress.runs_by_other_versions(cell.path for cell in cells)
    done = sum(cell.ended for cell in cells if not (request.anew and cell.path in older))
    share = f"; {request.scale:g} of the rounds" if request.scale != 1 else ""
    lines = [f"plan    {plural(len(cells), 'run')}, {done} of them already done{share}"]
    if schedules:
        lines.append(f"ends    where the whole run ends: {', '.join(schedules)}")
    if older:
        versions = ", ".join(f"{n} by {version}" for version, n in progress.run_versions(older).items())
        kept = "these are kept, and continued if unfinished; --anew runs them again"
        lines.append(f"older   {versions}; {'these are run again' if request.anew else kept}")
    return "\n".join(lines)


def _result(experiment: Experiment, runs: Mapping[Key, Cell], facts: dict[str, Any]) -> TableResult:
    """The comparison of the finished runs with the paper, with the place and time of the runs."""
    groups: dict[tuple[str, str], list[RunData]] = {}
    for key, cell in runs.items():
        groups.setdefault((key.row, key.method), []).append(read_run(cell.path, key.method))
    each = {run.path: run for group in groups.values() for run in group}  # rows may share runs
    seconds = sum(float(run.series("train", "seconds")[1].sum()) for run in each.values())
    facts |= {
        "unskew": revision(),
        "made_by": progress.run_versions(cell.path for cell in runs.values()),
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}",
        "hours": round(seconds / 3600, 3),
    }
    return result_of(experiment, groups, facts)
