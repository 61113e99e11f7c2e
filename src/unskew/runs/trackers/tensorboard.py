"""TensorBoard: an event file in `RUN/tensorboard`. `tensorboard --logdir runs` shows all runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unskew.round.callback import Callback, Progress
from unskew.runs.trackers.tracker import folder_of, is_saved, package, scalars, settings_text
from unskew.system import disk

FOLDER = "tensorboard"


class Tracker(Callback):
    """Writes scalars through torch's SummaryWriter, and the settings as text."""

    name = "tensorboard"

    def __init__(self) -> None:
        package("tensorboard", "tensorboard")
        self._module = package("torch.utils.tensorboard", "tensorboard")

    def begun(self, run: Progress) -> None:
        # hide what an earlier process wrote for rounds after the checkpoint, because these are repeated
        first = run.t + 1 if is_saved(run) else 0
        folder = disk.folder_below(folder_of(run) / FOLDER)
        self._writer = self._module.SummaryWriter(str(folder), purge_step=first)
        if not first:
            table = "\n".join(f"| {name} | {value} |" for name, value in settings_text(run).items())
            self._writer.add_text("settings", f"| setting | value |\n|---|---|\n{table}")

    def evaluated(self, run: Progress, rows: Sequence[Mapping[str, Any]]) -> str | None:
        for name, value, t in scalars(rows):
            self._writer.add_scalar(name, value, t)
        self._writer.flush()
        return None

    def ended(self, run: Progress, why: str) -> None:
        if hasattr(self, "_writer"):
            self._writer.close()
