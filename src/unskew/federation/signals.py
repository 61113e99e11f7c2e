"""Signals between the front and the processes that conduct runs, carried by modification times of files,
which need no space, so a full disk stops none of them."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

REQUESTS, REPLIES = "requests.bell", "replies.bell"
"""Files of a federation's folder `flower`: signal of requests to sites, and of replies to the
answered."""


class Bell:
    """A signal in a file. A listener detects rings since its last check; the first check detects none.

    It is rung when messages were left: requests for sites, or replies for the coordinator. A listener that
    misses the signal only loses time until its next regular request.
    """

    def __init__(self, path: Path):
        self.path = path
        self._last_ring = self._ring_time()

    def ring(self) -> None:
        """Ring the bell. Never raises."""
        now = time.time_ns()
        with suppress(OSError):
            self.path.touch(mode=0o600)
            os.utime(
                self.path, ns=(now, now)
            )  # the time of `touch` is coarse, so that two rings might have equal times

    def rang(self) -> bool:
        """True if the bell was rung since the last call."""
        before, self._last_ring = self._last_ring, self._ring_time()
        return self._last_ring != before

    def _ring_time(self) -> int:
        try:
            return os.stat(self.path).st_mtime_ns
        except OSError:
            return 0


IDLE_FOLDER = "idle"
"""The folder in a federation's folder `flower`."""


class IdleNodes:
    """Times of nodes' last requests without a message.

    Flower's server delivers a message once. If the front, the server or the site's machine fails at that
    moment, the message is lost, and its sender would wait for an answer until the deadline. Every message
    that was sent to a node before such a request is lost.

    folder: contains an empty file per node with that time as modification time. All times are those of `now`.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    @staticmethod
    def now() -> float:
        """Seconds on a monotonic clock that all programs of this machine share."""
        return time.monotonic()

    def note(self, node: int, asked: float) -> None:
        """Record a node's request, passed on at time `asked`, that brought no message. Never raises."""
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
        """The time of this node's last request that brought no message; -1 if there was none."""
        try:
            return os.stat(self.folder / str(node)).st_mtime
        except OSError:
            return -1.0

    def forget(self) -> None:
        """Remove all times, because the clock restarts with the machine."""
        for path in self.folder.glob("*"):
            with suppress(OSError):
                path.unlink()
