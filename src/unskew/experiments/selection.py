"""Which rows and methods of an experiment to run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from unskew.engine.resolve import written
from unskew.errors import DataError, UsageError
from unskew.experiments.experiment import Experiment, TableRow


@dataclass(frozen=True)
class Selection:
    """rows: the rows to run; methods: by the paper's names; missing: selected rows whose data are not on this machine."""

    rows: tuple[TableRow, ...]
    methods: tuple[str, ...]
    missing: tuple[TableRow, ...] = ()


def with_methods(experiment: Experiment, methods: Sequence[str]) -> Experiment:
    """The experiment with further methods, each named by its own text, such as "flea+scaffold" or "my_method.py".

    Raises UsageError: E102 for a text that cannot be read, E126 for a method that the experiment already compares.
    """
    more: dict[str, str] = {}
    for text in methods:
        engine = written(text)
        if text in {*experiment.methods, *more} or engine in {*experiment.methods.values(), *more.values()}:
            raise UsageError("E126", f"'{experiment.name}' already compares '{text}'; leave out --add {text}.")
        more[text] = engine
    return dataclasses.replace(experiment, methods={**experiment.methods, **more})


def select(experiment: Experiment, rows: Sequence[str] = (), methods: Sequence[str] = ()) -> Selection:
    """The rows and methods asked for by name, in the experiment's order; all of them where none is named.

    rows: a row's name, or the beginning of several names. methods: the paper's name or ours.
    Raises UsageError (E126) for a name that does not exist, DataError (E402) if no row asked for has its data here.
    """
    row_names = {name for asked in rows for name in _rows_called(experiment, asked)}
    method_names = {name for asked in methods for name in _methods_called(experiment, asked)}
    chosen = [row for row in experiment.rows if not rows or row.name in row_names]
    runnable = [row for row in chosen if row.has_data]
    if not runnable:
        missing = ", ".join(sorted({row.data for row in chosen}))
        raise DataError(
            "E402", f"the data of these rows are not here ({missing}); set UNSKEW_DATA to the folder that holds them."
        )
    return Selection(
        rows=tuple(runnable),
        methods=tuple(name for name in experiment.methods if not methods or name in method_names),
        missing=tuple(row for row in chosen if not row.has_data),
    )


def _rows_called(experiment: Experiment, asked: str) -> list[str]:
    """The row of exactly this name, or else all whose names begin with it."""
    names = [row.name for row in experiment.rows]
    if asked in names:
        return [asked]
    return [name for name in names if name.startswith(asked)] or [experiment.row(asked).name]


def _methods_called(experiment: Experiment, asked: str) -> list[str]:
    """The methods that the paper or the engine calls by this name."""
    names = [name for name, text in experiment.methods.items() if asked.lower() in (name.lower(), text)]
    if not names:
        known = ", ".join(experiment.methods)
        raise UsageError("E126", f"'{experiment.name}' does not compare '{asked}'; it compares {known}.")
    return names
