"""Removing what a site keeps of runs that are over: the models that came, its private state, its noisy replies.

What a run may need against its operator's will stays: the number of the last request, so that no old request is answered
again, the last round of which a noisy reply was sent, and the list and ledger of what has left.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unskew import disk
from unskew.deploy.noisy import FILES
from unskew.deploy.site_files import RECEIVED, REMOVED, SETUP
from unskew.errors import StateError, UsageError

IN_USE_S = 3600.0
"""A run that was used within so many seconds may be going on."""
DAY_S = 86400.0
PRIVATE = "private-*.safetensors"


@dataclass(frozen=True)
class Kept:
    """What a site keeps of one run. used_s: how long ago it was last used."""

    path: Path
    files: tuple[Path, ...]
    bytes: int
    used_s: float

    @staticmethod
    def of(path: Path) -> Kept:
        states = (p for files in (PRIVATE, FILES, "*.part") for p in sorted(path.glob(files)))
        files = tuple(p for p in (path / SETUP, path / RECEIVED, *states) if p.exists())
        used = max((p.stat().st_mtime for p in path.iterdir()), default=path.stat().st_mtime)
        return Kept(path, files, sum(p.stat().st_size for p in files), time.time() - used)

    def remove(self) -> None:
        """Remove the files. A coordinator that goes on with the run reads that this site has lost its private state."""
        if any(p.match(PRIVATE) for p in self.files):
            disk.replace(self.path / REMOVED, "")
        for path in self.files:
            path.unlink(missing_ok=True)


def ago(seconds: float) -> str:
    """How long ago, in words."""
    for unit, length_s in (("day", DAY_S), ("hour", 3600.0), ("minute", 60.0)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}s ago"
    return f"{max(0.0, seconds):.0f} seconds ago"


def busy(folder: Path, older_days: float) -> list[Kept]:
    """Runs of which something would be removed for their age, but which may be going on."""
    kept = [Kept.of(path) for path in sorted((folder / "runs").glob("*")) if path.is_dir()]
    return [k for k in kept if k.files and older_days * DAY_S <= k.used_s < IN_USE_S]


def removable(folder: Path, runs: Sequence[str], older_days: float) -> list[Kept]:
    """Of these runs, or else of all that were not used for so many days, what can be removed.

    Raises UsageError (E111) for a run that is not there, StateError (E110) for one that may be going on.
    """
    known = {path.name: path for path in sorted((folder / "runs").glob("*")) if path.is_dir()}
    for run in runs:
        if run not in known:
            raise UsageError("E111", f"{folder} keeps nothing of a run '{run}'.")
    kept = [Kept.of(known[run]) for run in (runs or known)]
    if runs and (used := [k for k in kept if k.used_s < IN_USE_S]):
        text = f"run {used[0].path.name} was last used {ago(used[0].used_s)} and may be going on"
        raise StateError("E110", f"{text}; try again once it has been quiet for an hour.")
    return [k for k in kept if k.files and (runs or k.used_s >= max(older_days * DAY_S, IN_USE_S))]
