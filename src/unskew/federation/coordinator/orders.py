"""Runs over a network as files: orders, and the log by which a command follows a run.

`unskew run --on` writes an order for the process that conducts the run, as a file of the federation's
folder with a secret name. Flower carries only this name, so that a stranger who reaches the SuperLink
cannot order anything.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import disk_usage
from typing import Any

from unskew.errors import Paused, StateError, UnskewError, UsageError
from unskew.records.run_lock import RunLock
from unskew.system import disk

ORDER_FILE = "deploy.json"
"""The file of a run's order in its folder."""
ENDING = "ending.json"
"""The file of a run's ending in its folder."""


@dataclass(frozen=True)
class Terms:
    """A run's terms for its sites.

    min_sites: a round with fewer replies changes nothing. deadline_s: longest wait of an exchange. wait_s:
    longest wait for missing sites before round 1. test: a test set at the server, an .npz or a folder.
    without: excluded sites.
    """

    min_sites: int = 1
    deadline_s: float = 600.0
    wait_s: float = 600.0
    test: str | None = None
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class Order:
    """path: the run's folder; federation: the coordinator's folder; settings: the study's."""

    path: Path
    federation: Path
    settings: Mapping[str, Any]
    terms: Terms

    def as_json(self) -> dict[str, Any]:
        """The content of the order's file."""
        places = {"path": str(self.path), "federation": str(self.federation)}
        return {**places, "settings": dict(self.settings), "terms": asdict(self.terms)}

    @staticmethod
    def read(facts: Mapping[str, Any]) -> Order:
        """An order from `as_json`. Raises KeyError if something is missing."""
        terms = Terms(**{**facts["terms"], "without": tuple(facts["terms"]["without"])})
        return Order(Path(facts["path"]), Path(facts["federation"]), facts["settings"], terms)


def hand_in(order: Order) -> str:
    """Write an order into the federation's folder. Returns its name."""
    name = secrets.token_hex(16)
    path = _path(order.federation, name)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    disk.replace(path, json.dumps(order.as_json()))
    return name


def exists(federation: Path, name: str) -> bool:
    """True for the name of an order that was handed in here and has not been withdrawn."""
    return re.fullmatch("[0-9a-f]{32}", name) is not None and _path(federation, name).exists()


def waiting_orders(federation: Path) -> set[str]:
    """The names of all orders that were handed in here and have not been withdrawn."""
    return {path.stem for path in _path(federation, "").parent.glob("*.json")}


def read_order(federation: Path, name: str) -> Order:
    """The order of this name. Raises FileNotFoundError if it was withdrawn."""
    return Order.read(json.loads(_path(federation, name).read_text()))


def withdraw(federation: Path, name: str) -> None:
    """Remove an order, if it is still there."""
    _path(federation, name).unlink(missing_ok=True)


def _path(federation: Path, name: str) -> Path:
    return federation / "flower" / "orders" / f"{name}.json"


STATUS_S = 20.0
"""Seconds between questions to Flower about the run's state."""
LOOK_S = 0.3
MOST_SILENCES = 2
"""Unanswered questions in a row before that is printed: `unskew serve` restarts killed programs within
seconds."""
LEAST_FREE = 1 << 20
"""Bytes of free disk space that a run needs."""
LOG = "server.log"
STARTED_FILE = "started.json"


@dataclass(frozen=True)
class RunStart:
    """number: Flower's number of the run; log_at: length of the run's log at the start, in bytes."""

    number: int
    log_at: int

    def write(self, run: Path) -> None:
        """Write it into the run's folder."""
        disk.replace(run / STARTED_FILE, json.dumps(asdict(self)))

    @staticmethod
    def read(run: Path) -> RunStart:
        """Raises UsageError (E117) if this is not a started run over a network, StateError (E201) for a
        damaged file.
        """
        try:
            return RunStart(**json.loads((run / STARTED_FILE).read_text()))
        except (FileNotFoundError, NotADirectoryError):
            raise UsageError("E117", f"{run} is no run over a network that was started.") from None
        except (ValueError, TypeError) as error:
            text = f"{run / STARTED_FILE} is damaged; continue the run with: unskew resume {run}"
            raise StateError("E201", text) from error


def follow(
    run: Path, started: RunStart, status: Callable[[], str], say: Callable[[str], None]
) -> dict[str, Any]:
    """Print a run's log from its start until it ends. Returns its ending.json.

    status: Flower's state of the run, "" without an answer. Raises UsageError (E507) if its process has
    ended without an ending, Paused (E203) if that is because the disk is full, StateError (E110) if another
    process conducts the run.
    """
    read, asked, unanswered = started.log_at, time.monotonic(), 0
    while True:
        ended = (run / ENDING).exists()
        if (run / LOG).exists():
            with open(run / LOG, "rb") as file:
                file.seek(read)
                whole, end, _ = file.read().rpartition(b"\n")
            read += len(whole) + len(end)
            for line in whole.decode(errors="replace").splitlines():
                say(line)
        if ended:
            return json.loads((run / ENDING).read_text())
        if time.monotonic() - asked > STATUS_S:
            asked = time.monotonic()
            state = status()
            if state and unanswered >= MOST_SILENCES:
                say("the server answers again")
            unanswered = 0 if state else unanswered + 1
            if unanswered == MOST_SILENCES:
                text = "the server does not answer; is `unskew serve` running? Every finished round is saved"
                say(f"E507 {text}, and once it answers, this run goes on or says how to resume it.")
            if state.startswith("finished") and not (run / ENDING).exists():
                raise _lost_ending(run)
        time.sleep(LOOK_S)


def _lost_ending(run: Path) -> UnskewError:
    """The error for a run with a process that ended without an ending. Raises StateError (E110) if another
    process conducts the run.
    """
    left = disk_usage(run).free
    if left < LEAST_FREE:
        text = f"disk full: the run in {run} cannot write ({left:,} bytes free)"
        return Paused("E203", f"{text}. The last checkpoint is safe; free space, then: unskew resume {run}")
    check_alone(run)
    text = "the run's process ended before it could say why; what it saved is safe."
    return UsageError("E507", f"{text} Continue it with: unskew resume {run}")


def check_alone(run: Path) -> None:
    """Raises StateError (E110), which explains how to follow the run, if another process conducts it."""
    try:
        with RunLock(run):
            pass
    except StateError as error:
        raise StateError(error.code, f"{error.text} To follow it: unskew attach {run}") from None
