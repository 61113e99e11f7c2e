"""A dry run of a plan: assemble every run once, to report what cannot run before any training.

Runs that have begun were assembled before; for these only the data are compared with those of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from unskew.comparison.progress import Cell
from unskew.data.clients.federation import Federation
from unskew.data.samples.dataset import Dataset
from unskew.errors import DataError, StateError, UnskewError, excerpt
from unskew.measures import NONE
from unskew.records.checkpoints import latest_facts
from unskew.runs import resolve
from unskew.runs.assemble import loop_of
from unskew.runs.hardware import check_memory
from unskew.runs.resolve import check_spelling, dataset_of, reserve_of
from unskew.runs.run_folder import fingerprint


def dry_run(cells: Iterable[Cell], on_data: Callable[[Dataset], object] = lambda dataset: None) -> str:
    """Check one seed of every run that has not begun, and the data of runs that have.

    on_data: a function that is called with every data set that is read.
    Returns the name of the main score; "" if all runs have begun. Raises the error of the first run that
    cannot work, with its method in the text, and StateError (E112) if the data of a run have changed.
    """
    cells, seen, score = list(cells), set[tuple[str, int]](), ""
    cache = _DataCache(on_data)
    check_data(cells, cache)
    for cell in cells:
        same = (cell.settings.replace(seed=0).fingerprint(), id(cell.objects.method))
        if same in seen or (cell.path / "config.yaml").exists():
            continue
        seen.add(same)
        try:
            score = cache.assemble(replace(cell, settings=cell.settings.replace(normalise="none", workers=1)))
        except UnskewError as error:
            raise error.at(cell.method) from None
    return score


def check_data(cells: Sequence[Cell], cache: _DataCache | None = None) -> None:
    """Raises StateError (E112) if data have changed since a run began, because its scores would be compared
    with scores on other data.

    Each data set is checked once. If all runs are finished, missing data are no error.
    """
    asked, cache = set[str](), cache or _DataCache()
    for cell in cells:
        known = latest_facts(cell.path).get("data")
        if known is None or cell.settings.data in asked:
            continue
        asked.add(cell.settings.data)
        try:
            now = fingerprint(cache.federation(cell))
        except DataError:
            if all(one.ended for one in cells):
                continue
            raise
        if now != known:
            text = f"the data {excerpt(cell.settings.data, 60)} are not those that {cell.path} was trained on"
            raise StateError("E112", f"{text}, and scores would be compared; choose another --name.")


class _DataCache:
    """Keeps the last data set and the last federation, which successive runs often share."""

    def __init__(self, on_data: Callable[[Dataset], object] = lambda dataset: None) -> None:
        self._on_data = on_data
        self._dataset: tuple[str, Dataset] | None = None
        self._federation: tuple[Any, Federation] | None = None

    def assemble(self, cell: Cell) -> str:
        """Assemble a run, and return the name of its main score."""
        settings, method = cell.settings, cell.method_object()
        check_spelling(settings)
        partition = (
            *(settings.data, settings.skew, settings.clients, settings.samples, settings.seed_of_partition),
            *(settings.validation, resolve.pools(settings), reserve_of(method)),
        )
        if self._federation is None or self._federation[0] != partition:
            self._federation = partition, self.federation(cell)
        run = resolve.run_on(self._federation[1], settings, method, *cell.objects[2:])
        check_memory(method, run.fed)
        if settings.measure != NONE:
            loop_of(run).trainer.close()
        return run.task.main_score

    def federation(self, cell: Cell) -> Federation:
        """The federation of a run with scaled samples."""
        settings, data = cell.settings, cell.objects.data
        if data is None:
            if self._dataset is None or self._dataset[0] != settings.data:
                self._dataset = settings.data, dataset_of(settings)
                self._on_data(self._dataset[1])
            data = self._dataset[1]
        return resolve.federation_of(settings, cell.method_object(), data, cell.objects.model)
