"""The plan of a reproduction: its rows and methods, and the folders of its runs.

The folder of a run is named after the run's settings, so that no run is repeated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from unskew.comparison.progress import Cell
from unskew.errors import DataError, UsageError
from unskew.experiments.experiment import Experiment, TableRow
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
