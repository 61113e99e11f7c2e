"""What can be checked about an experiment without reading any data: its settings, its methods and its grids."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from unskew.attacks.catalogue import attack_of
from unskew.engine.resolve import is_reference
from unskew.engine.sources import check_spelling
from unskew.errors import UnskewError, UsageError, suggestion
from unskew.experiments.experiment import Experiment, TableRow
from unskew.methods import registry
from unskew.methods.registry import meant_for


def check_experiment(experiment: Experiment, where: str) -> None:
    """Check every combination of row and method, and the grids. where: the file, for messages.

    Raises UsageError or DataError, naming the place, for an unknown setting or method, for a value out of range, and for
    arguments of a Part that none of the methods has.
    """
    for row in experiment.rows:
        if row.attack:
            with _naming(f"{where}, row {row.name}"):
                attack_of(row.attack.name, row.attack.settings)
        used: set[str] = set()
        for method in experiment.methods:
            used |= _check_run(experiment, row, method, f"{where}, row {row.name}, {method}")
        known = used | _part_names(experiment, experiment.methods)
        _check_parts(row.settings.get("set") or (), known, f"{where}, row {row.name}: set")
    _check_grids(experiment, where)


def _check_run(experiment: Experiment, row: TableRow, method: str, where: str) -> set[str]:
    """Check one row's run of one method. Returns the Parts that its settings reach."""
    with _naming(where):
        check_spelling(experiment.settings_of(row, method))
    text = experiment.methods[method]
    if is_reference(text):
        return set()
    arguments = experiment.overrides.get(method, {}).get("set") or {}
    _check_parts(arguments, meant_for(text, arguments), f"{where}: set")
    return set(meant_for(text, row.settings.get("set") or {}))


def _check_grids(experiment: Experiment, where: str) -> None:
    for part, arguments in experiment.grids.items():
        _check_parts([part], _part_names(experiment, experiment.methods), f"{where}: grids")
        method = next(name for name in experiment.methods if part in _part_names(experiment, [name]))
        for argument, value in ((name, value) for name, values in arguments.items() for value in values):
            with _naming(f"{where}, grids"):
                registry.parse(experiment.methods[method], {part: {argument: value}})


def _part_names(experiment: Experiment, methods: Iterable[str]) -> set[str]:
    return {part.name for method in methods for part in experiment.parts(method)}


def _check_parts(names: Iterable[str], known: Collection[str], where: str) -> None:
    for name in names:
        if name not in known:
            raise UsageError(
                "E126", f"{where} names '{name}', which is a Part of none of the methods.{suggestion(name, known)}"
            )


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Put the place in front of the message of any error raised inside."""
    try:
        yield
    except UnskewError as error:
        raise type(error)(error.code, f"{where}: {error.text}") from None
