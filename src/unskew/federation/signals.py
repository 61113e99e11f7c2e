"""Signals between the front and the processes that conduct runs, as files whose time of change carries the
message.

A bell is rung when something was left for others: requests for sites, or replies for the coordinator. A
listener that misses it loses no more than the time until it would have asked anyway.

For each node the time is kept at which it last asked for messages and was given none. Flower's server hands a
message out once. If the front, the server or the site's machine dies in that moment, the message is lost, and
its sender would wait for an answer until the deadline. Every message that was sent to a node before such a
question never reached it.

Times of change need no space, so a full disk stops none of these signals.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

REQUESTS, REPLIES = "requests.bell", "replies.bell"
"""Files of a federation's folder `flower`: for sites, that the coordinator has asked; for it, that a site has
answered."""


class Bell:
    """path: the file's. A listener hears what was rung since it listened last, and of its first time
    nothing."""

    def __init__(self, path: Path):
        self.path = path
        self._heard = self._rung()

    def ring(self) -> None:
        """Whatever happens, this raises nothing."""
        now = time.time_ns()
        with suppress(OSError):
            self.path.touch(mode=0o600)
            os.utime(
                self.path, ns=(now, now)
            )  # the time of `touch` is coarse, and two rings might have the same

    def rang(self) -> bool:
        """Whether it was rung since this was asked last."""
        before, self._heard = self._heard, self._rung()
        return self._heard != before

    def _rung(self) -> int:
        try:
            return os.stat(self.path).st_mtime_ns
        except OSError:
            return 0


IDLE_FOLDER = "idle"
"""The folder in a federation's folder `flower`."""


class IdleNodes:
    """folder: holds an empty file a node, whose time of change is the time of the question, so that a full
    disk silences nobody. All times are those of `now`."""

    def __init__(self, folder: Path):
        self.folder = folder

    @staticmethod
    def now() -> float:
        """Seconds on a clock that all programs of this machine share, and that nobody sets."""
        return time.monotonic()

    def note(self, node: int, asked: float) -> None:
        """A question of this node, which was passed on at that time, brought nothing. Whatever happens, this
        raises nothing."""
        path, new = self.folder / str(node), self.folder / f".{node}"
        with suppress(OSError):
            try:
                os.utime(path, (asked, asked))
            except FileNotFoundError:
                # under its own name no file may have the time of day, which is later than any of `now`
                self.folder.mkdir(mode=0o700, exist_ok=True)
                new.touch(mode=0o600)
                os.utime(new, (asked, asked))
                new.replace(path)

    def last(self, node: int) -> float:
        """When this node's last question that brought nothing was passed on; -1 if there was none."""
        try:
            return os.stat(self.folder / str(node)).st_mtime
        except OSError:
            return -1.0

    def forget(self) -> None:
        """Begin anew: the clock has, too, if this machine was started again."""
        for path in self.folder.glob("*"):
            with suppress(OSError):
                path.unlink()
