"""A bell between programs of the coordinator's machine: one rings when it has left something, others need not ask often.

It is a file whose time of change says when it was rung last, so that a full disk silences nobody. Whoever misses it loses
no more than the time until they would have asked anyway.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

REQUESTS, REPLIES = "requests.bell", "replies.bell"
"""Files of a federation's folder `flower`: for sites, that the coordinator has asked; for it, that a site has answered."""


class Bell:
    """path: the file's. A listener hears what was rung since it listened last, and of its first time nothing."""

    def __init__(self, path: Path):
        self.path = path
        self._heard = self._rung()

    def ring(self) -> None:
        """Whatever happens, this raises nothing."""
        now = time.time_ns()
        with suppress(OSError):
            self.path.touch(mode=0o600)
            os.utime(self.path, ns=(now, now))  # the time of `touch` is coarse, and two rings might have the same

    def rang(self) -> bool:
        """Whether it was rung since this was asked last."""
        before, self._heard = self._heard, self._rung()
        return self._heard != before

    def _rung(self) -> int:
        try:
            return os.stat(self.path).st_mtime_ns
        except OSError:
            return 0
