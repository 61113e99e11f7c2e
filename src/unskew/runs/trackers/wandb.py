"""Weights & Biases: files in `RUN/wandb`, which `wandb sync` can send.

The tracker is offline unless WANDB_MODE says otherwise: nothing leaves this machine by itself. A resumed run
continues its entry, with the number in wandb.json. Offline, each process writes its own file, and `wandb
sync` joins these into one entry.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from unskew.round.callback import Callback, Progress
from unskew.runs.trackers.tracker import entry_in, folder_of, keep_entry, package, scalars, settings_text
from unskew.system import disk

PROJECT, ENTRY = "unskew", "wandb.json"
FOLDER = "wandb"
"""The folder that wandb makes in the run's."""


class Tracker(Callback):
    """Logs every round's scores with the round number as the axis of their charts."""

    name = "wandb"

    def __init__(self) -> None:
        self._wandb: Any = package("wandb", "wandb")

    def begun(self, run: Progress) -> None:
        if run.t >= run.rounds:  # a finished run has no more rows
            return
        folder = folder_of(run)
        disk.folder_below(folder / FOLDER)
        number = entry_in(folder / ENTRY, PROJECT)
        self._run = self._wandb.init(
            project=PROJECT,
            name=folder.name,
            id=number or None,
            resume="allow" if number else None,
            dir=str(folder),
            config=settings_text(run),
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=self._wandb.Settings(silent=True, console="off"),
        )
        keep_entry(folder / ENTRY, PROJECT, str(self._run.id))
        self._run.define_metric("*", step_metric="round")

    def evaluated(self, run: Progress, rows: Sequence[Mapping[str, Any]]) -> str | None:
        by_round: dict[int, dict[str, float]] = defaultdict(dict)
        for name, value, t in scalars(rows):
            by_round[t][name] = value
        for t, values in by_round.items():
            self._run.log({"round": t, **values})
        return None

    def ended(self, run: Progress, why: str) -> None:
        if hasattr(self, "_run"):
            self._run.finish(exit_code=0 if why == "done" else 1)
