"""Signals between the front and the processes that conduct runs, carried by modification times of files.

A bell is rung when messages were left: requests for sites, or replies for the coordinator. A listener that
misses the signal only loses time until its next regular request.

Modification times need no space, so a full disk stops none of these signals.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

REQUESTS, REPLIES = "requests.bell", "replies.bell"
"""Files of a federation's folder `flower`: signal of requests to sites, and of replies to the
answered."""


class Bell:
    """A signal in a file. A listener detects rings since its last check; the first check detects none."""

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
