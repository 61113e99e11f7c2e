"""Weights & Biases: a file in the run's folder, `RUN/wandb`, which `wandb sync` can send. Offline unless WANDB_MODE says
otherwise: nothing leaves this machine by itself."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from unskew.engine.callbacks.callback import Callback, Progress
from unskew.engine.callbacks.trackers.tracker import facts, folder_of, package, scalars

PROJECT = "unskew"


class Tracker(Callback):
    """Logs every round's scores with the number of the round, which is the axis of their charts."""

    name = "wandb"

    def __init__(self) -> None:
        self._wandb: Any = package("wandb", "wandb")

    def begun(self, run: Progress) -> None:
        folder = folder_of(run)
        self._run = self._wandb.init(
            project=PROJECT,
            name=folder.name,
            dir=str(folder),
            config=facts(run),
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=self._wandb.Settings(silent=True, console="off"),
        )
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
