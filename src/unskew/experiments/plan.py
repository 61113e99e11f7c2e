"""The plan of a reproduction: its rows and methods, the folders of its runs, and the text that announces it.

The folder of a run is named after the run's settings, so that no run is repeated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from unskew.comparison.progress import Cell, makers
from unskew.config import Settings
from unskew.errors import DataError, UsageError
from unskew.experiments.experiment import Experiment, TableRow
from unskew.report.analysis.numbers import plural
from unskew.runs.resolve import method_text


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


def table_outline(experiment: Experiment, selection: Selection) -> str:
    """Text that names the table, the rows to run, and the rows without data."""
    lines = [line for line in (experiment.title, experiment.paper) if line]
    lines += [f"row     {row.name}{': ' + row.note if row.note else ''}" for row in selection.rows]
    lines += [f"skipped {row.name}: its data ({row.data}) are not here" for row in selection.missing]
    return "\n".join(lines)


def runs_outline(cells: Sequence[Cell], repeated: Collection[Path], scale: float) -> str:
    """Text with the number of runs. repeated: finished runs that are run again."""
    left = [cell for cell in cells if cell.path in repeated or not cell.ended]
    share = f"; {scale:g} of the rounds" if scale != 1 else ""
    return f"plan    {plural(len(cells), 'run')}, {len(cells) - len(left)} of them already done{share}"


def attacks_outline(left: int) -> str:
    """Text with the number of attacks; "" without attacks."""
    return f"attacks {left} on the finished runs" if left else ""


def schedules_outline(changes: Sequence[str]) -> str:
    """Text with the schedules that a shortened run changes; "" without changes."""
    return f"ends    where the whole run ends: {', '.join(changes)}" if changes else ""


def versions_outline(paths: Sequence[Path], anew: bool) -> str:
    """Text with the number of runs by other versions of unskew, and whether they are repeated."""
    versions = ", ".join(f"{n} by {version}" for version, n in makers(paths).items())
    if anew:
        return f"older   {versions}; these are run again"
    return f"older   {versions}; these are kept, and continued if unfinished; --anew runs them again"
