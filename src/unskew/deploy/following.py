"""A run that goes on in another process, as whoever started it follows it, and whoever attaches to it later."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unskew import disk
from unskew.deploy.orders import ENDING
from unskew.engine.disk.lock import Lock
from unskew.errors import Paused, StateError, UsageError

STATUS_S = 20.0
"""How often Flower is asked whether the run is still alive."""
LOOK_S = 0.3
AWAY = 2
"""How often in a row Flower does not answer until that is said: `unskew serve` restarts what was killed within seconds."""
LEAST_FREE = 1 << 20
"""Bytes. With fewer a run cannot go on."""
LOG = "server.log"
FILE = "started.json"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Started:
    """number: Flower's for the run; log_at: how long the run's log was before."""

    number: int
    log_at: int

    def write(self, run: Path) -> None:
        disk.replace(run / FILE, json.dumps(asdict(self)))

    @staticmethod
    def read(run: Path) -> Started:
        """Raises UsageError (E117) if this is no run over a network that was started, StateError (E208) for damage."""
        try:
            return Started(**json.loads((run / FILE).read_text()))
        except (FileNotFoundError, NotADirectoryError):
            raise UsageError("E117", f"{run} is no run over a network that was started.") from None
        except (ValueError, TypeError) as error:
            raise StateError("E208", f"{run / FILE} is damaged; continue the run with: unskew resume {run}") from error


def follow(run: Path, started: Started, status: Callable[[], str], say: Say) -> dict[str, Any]:
    """Repeat a run's log from where it was started until it ends. Returns its ending.json.

    status: Flower's word for the state of the run, "" if it does not answer. Raises UsageError (E507) if its process has
    ended without a word, Paused (E203) if it has because the disk is full, StateError (E110) if another process conducts
    the run.
    """
    log, asked, unanswered = _Log(run / LOG, started.log_at), time.monotonic(), 0
    while True:
        ended = (run / ENDING).exists()
        for line in log.fresh():
            say(line)
        if ended:
            return json.loads((run / ENDING).read_text())
        if time.monotonic() - asked > STATUS_S:
            asked = time.monotonic()
            word = status()
            if word and unanswered >= AWAY:
                say("the server answers again")
            unanswered = 0 if word else unanswered + 1
            if unanswered == AWAY:
                text = "the server does not answer; is `unskew serve` running? Every finished round is saved"
                say(f"E507 {text}, and once it answers, this run goes on or says how to resume it.")
            if word.startswith("finished") and not (run / ENDING).exists():
                _check_space(run)
                check_alone(run)
                text = "the run's process ended before it could say why; what it saved is safe."
                raise UsageError("E507", f"{text} Continue it with: unskew resume {run}")
        time.sleep(LOOK_S)


def check_alone(run: Path) -> None:
    """Raises StateError (E110) if a process conducts this run, and says how to follow it."""
    try:
        with Lock(run):
            pass
    except StateError as error:
        raise StateError(error.code, f"{error.text} To follow it: unskew attach {run}") from None


def _check_space(run: Path) -> None:
    """Raises Paused (E203) if the disk is so full that a run could not say how it ended."""
    free = os.statvfs(run)
    left = free.f_bavail * free.f_frsize
    if left < LEAST_FREE:
        text = (
            f"disk full: the run in {run} cannot write ({left:,} bytes free). The last checkpoint is safe; free space"
        )
        raise Paused("E203", f"{text}, then: unskew resume {run}")


@dataclass
class _Log:
    """Lines of a file as they are added, from a place on."""

    path: Path
    read: int

    def fresh(self) -> list[str]:
        if not self.path.exists():
            return []
        with open(self.path, "rb") as file:
            file.seek(self.read)
            whole, end, _ = file.read().rpartition(b"\n")
        self.read += len(whole) + len(end)
        return (whole + end).decode(errors="replace").splitlines()
