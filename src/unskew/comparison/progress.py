"""The runs of a comparison: their progress from the files that workers write, their versions, and their
removal."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unskew.config import Settings
from unskew.core.method import Method
from unskew.errors import NothingUsed, StateError
from unskew.records.rows import Tail
from unskew.records.run_lock import RunLock
from unskew.runs.object_digests import object_digests
from unskew.runs.resolve import Objects, method_of
from unskew.runs.run_folder import recorded_revision
from unskew.scores import MAIN
from unskew.version import revision


@dataclass
class Cell:
    """One run of a comparison: a method with one seed, its folder and its progress.

    method: the label of its row. objects: those that replace what the settings name.
    t: the last round that is finished. score: of the global model; client_mean, client_worst: of the same
    model on the clients' test rows; metric: the name of that score.
    losses: how often its process died. code: the exit code, None while it has none.
    """

    method: str
    seed: int
    path: Path
    settings: Settings
    t: int = 0
    score: float = float("nan")
    client_mean: float = float("nan")
    client_worst: float = float("nan")
    code: int | None = None
    metric: str = "accuracy"
    losses: int = 0
    objects: Objects = Objects()
    _rows: Tail | None = None

    @property
    def done(self) -> bool:
        """Whether the run ended normally, with a score or (E316) without one."""
        return self.code in (0, NothingUsed.exit_code)

    @property
    def ended(self) -> bool:
        """Whether the run has a final model."""
        return (self.path / "model.safetensors").exists()

    def method_object(self) -> Method:
        """The method of the run."""
        return method_of(self.settings, self.objects.method)

    def digests(self) -> dict[str, str]:
        """The digests of the run's objects, by description, as its checkpoints have them."""
        return object_digests(self.method_object(), self.objects.model, self.objects.metrics)

    def look(self) -> None:
        """Read the run's new scores."""
        self._rows = self._rows or Tail(self.path / "metrics.jsonl")
        try:
            for row in self._rows.read():
                self._take(row)
        except StateError:  # a resumed run went back behind what was read: read all of it at the next look
            self._rows = None

    def _take(self, row: dict[str, Any]) -> None:
        self.t = row["t"]
        if row["metric"] in MAIN.values():
            self.metric = row["metric"]
        if row["client"] is None:
            match row["scope"], row["metric"]:
                case "global", main if main in MAIN.values():
                    self.score = row["value"]
                case "global@client", "mean":
                    self.client_mean = row["value"]
                case "global@client", "worst":
                    self.client_worst = row["value"]


def run_versions(paths: Iterable[Path]) -> dict[str, int]:
    """The number of runs that each version of unskew began."""
    return dict(
        sorted(Counter(version for path in set(paths) if (version := recorded_revision(path))).items())
    )


def runs_by_other_versions(paths: Iterable[Path]) -> list[Path]:
    """The runs that another version of unskew began."""
    return [path for path in paths if recorded_revision(path) not in ("", revision())]


def discard(paths: Iterable[Path]) -> None:
    """Remove runs, one after another. Raises StateError (E110) for one in use, which stays."""
    for path in paths:
        with RunLock(path):
            shutil.rmtree(path)
