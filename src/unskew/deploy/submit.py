"""A run at the SuperLink, from the outside: hand it in, follow its log, learn how it ended."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from unskew.deploy import orders
from unskew.deploy.orders import ENDING, Order
from unskew.deploy.superlink import Refused, SuperLink, Unavailable, address
from unskew.deploy.supervise import Say
from unskew.deploy.tickets import Coordinator
from unskew.errors import UsageError

STARTING_S = 20.0
"""How long a run is offered to a SuperLink that does not answer: it may have been started a moment ago."""
STATUS_S = 20.0
"""How often Flower is asked whether the run is still alive."""


def submit(home: Coordinator, order: Order) -> int:
    """Start a run at the SuperLink. Returns its number. Raises UsageError (E507) if it is not accepted."""
    link, name, until = SuperLink(home), orders.hand_in(order), time.monotonic() + STARTING_S
    while True:
        try:
            return link.start(name)
        except Refused as error:
            raise UsageError("E507", f"the SuperLink did not accept the run: {error}") from error
        except Unavailable as error:
            if time.monotonic() >= until:
                text = f"nothing answers at {address(home)}; is `unskew serve` running?"
                raise UsageError("E507", text) from error
        time.sleep(0.5)


def status(home: Coordinator, number: int) -> str:
    """Flower's word for the state of a run: "pending", "running", "finished"; "" if it does not say."""
    try:
        return SuperLink(home).status(number)
    except (Refused, Unavailable):
        return ""


def stop(home: Coordinator, number: int) -> None:
    """End a run, if the SuperLink is there to be asked."""
    with contextlib.suppress(Refused, Unavailable):
        SuperLink(home).stop(number)


def follow(home: Coordinator, path: Path, number: int, since: float, say: Say) -> dict[str, Any]:
    """Repeat a run's log until it ends. Returns its ending.json. since: when the run was handed in, as time.time().

    Raises UsageError (E507) if Flower has lost the run on the way.
    """
    log, asked = _Log(path / "server.log", since), time.monotonic()
    while True:
        ending = _ending(path, since)
        for line in log.fresh():
            say(line)
        if ending:
            return ending
        if time.monotonic() - asked > STATUS_S:
            asked = time.monotonic()
            if status(home, number).startswith("finished") and not (path / ENDING).exists():
                text = "the run's process ended before it could say why; what it saved is safe."
                log_path = home.folder / "flower" / "conductor.log"
                raise UsageError("E507", f"{text} See {log_path}, then: unskew resume {path}")
        time.sleep(0.3)


class _Log:
    """Lines of a file as they are added. Those of an earlier process, which wrote before `since`, are skipped."""

    def __init__(self, path: Path, since: float):
        old = path.exists() and path.stat().st_mtime < since
        self.path, self.read = path, path.stat().st_size if old else 0

    def fresh(self) -> list[str]:
        if not self.path.exists() or self.path.stat().st_size <= self.read:
            return []
        with open(self.path) as file:
            file.seek(self.read)
            lines = file.read().splitlines()
            self.read = file.tell()
        return lines


def _ending(path: Path, since: float) -> dict[str, Any] | None:
    """How the run ended, if it has since then."""
    ending = path / ENDING
    return json.loads(ending.read_text()) if ending.exists() and ending.stat().st_mtime >= since else None
