"""Which process or machine speaks for a site: one at a time, whoever came first, until nothing has been heard of it for a while."""

from __future__ import annotations

import time
from collections.abc import Callable

SILENT_S = 15.0
"""A live process is heard of at least every 5 s. One that was started again in its folder counts as the same."""


class Holding:
    """By site, the place whose requests are passed on, and when it was heard of last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock, self._holders = clock, dict[str, tuple[int, float]]()

    def may_speak(self, site: str, place: int) -> bool:
        """Whether a request from this place is passed on; it then holds the site's name."""
        now = self._clock()
        holder, heard = self._holders.get(site, (place, now))
        if holder != place and now - heard < SILENT_S:
            return False
        self._holders[site] = place, now
        return True
