"""Every run of a plan put together once and let go again, so that what cannot run is told before any of them trains."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from unskew.comparison.watch import Cell
from unskew.config import Settings
from unskew.core.method import Method
from unskew.data.dataset import Dataset
from unskew.data.federation import Federation
from unskew.engine import resolve
from unskew.engine.assemble import loop_of
from unskew.engine.memory import check_room
from unskew.engine.sources import check_spelling, dataset_of, reserve_of
from unskew.errors import UnskewError
from unskew.measures import NONE


def rehearse(cells: Iterable[Cell]) -> None:
    """Look at one seed of every run that has not begun; what has begun was put together before.

    Raises what the first of them that cannot run would raise itself, its name in front.
    """
    seen: set[str] = set()
    stage = _Stage()
    for cell in cells:
        same = cell.settings.replace(seed=0).fingerprint()
        if same in seen or (cell.path / "config.yaml").exists():
            continue
        seen.add(same)
        try:
            stage.play(cell.settings.replace(normalise="none", workers=1))
        except UnskewError as error:
            raise type(error)(error.code, f"{cell.method}: {error.text}") from None


class _Stage:
    """Holds the last data set and the last federation, which runs that follow each other mostly share."""

    def __init__(self) -> None:
        self._dataset: tuple[str, Dataset] | None = None
        self._federation: tuple[Any, Federation] | None = None

    def play(self, settings: Settings) -> None:
        method = resolve.method_of(settings)
        check_spelling(settings)
        run = resolve.run_on(self._dealt_out(settings, method), settings, method)
        check_room(method, run.fed)
        if settings.measure != NONE:
            loop_of(run).trainer.close()

    def _dealt_out(self, settings: Settings, method: Method) -> Federation:
        partition = (
            *(settings.data, settings.skew, settings.clients, settings.samples, settings.seed_of_partition),
            *(settings.validation, resolve.pools(settings), reserve_of(method)),
        )
        if self._federation is None or self._federation[0] != partition:
            self._federation = partition, resolve.federation_of(settings, method, self._read(settings))
        return self._federation[1]

    def _read(self, settings: Settings) -> Dataset:
        if self._dataset is None or self._dataset[0] != settings.data:
            self._dataset = settings.data, dataset_of(settings)
        return self._dataset[1]
