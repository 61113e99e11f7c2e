"""Every run of a plan put together once and let go again, so that what cannot run is told before any of them trains."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from unskew.comparison.cells import CENTRALISED, Cell, federation_for
from unskew.config import Settings
from unskew.core.method import Method
from unskew.data.federation import Dataset, Federation
from unskew.engine import resolve
from unskew.engine.memory import check_room
from unskew.errors import UnskewError
from unskew.measures import NONE
from unskew.methods import registry
from unskew.tasks import task_of


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
        method = Method() if settings.method == CENTRALISED else registry.parse(settings.method, settings.set)
        resolve.check_spelling(settings)
        federation = self._dealt(settings, method)
        method.check_task(task_of(federation.y).name)
        if settings.measure != NONE:
            resolve.loop_of(settings, method, federation).trainer.close()
            return
        fed = resolve.fed_of(settings, method, federation)
        check_room(method, fed)
        resolve.lanes_of(settings, fed.net, resolve.device_of(settings))

    def _dealt(self, settings: Settings, method: Method) -> Federation:
        dealt = (
            *(settings.data, settings.skew, settings.clients, settings.samples, settings.seed_of_partition),
            *(settings.validation, settings.method == CENTRALISED, max((p.reserve for p in method.parts), default=0)),
        )
        if self._federation is None or self._federation[0] != dealt:
            self._federation = dealt, federation_for(settings, method, self._read(settings))
        return self._federation[1]

    def _read(self, settings: Settings) -> Dataset:
        if self._dataset is None or self._dataset[0] != settings.data:
            self._dataset = settings.data, resolve.dataset_of(settings)
        return self._dataset[1]
