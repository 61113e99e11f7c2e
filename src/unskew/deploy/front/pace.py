"""How often somebody may come: so many times a second, and a number of times at once after a rest."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

MOST_NAMES = 1024
"""How many names are kept apart; the others share one pace."""
OTHERS = ""


@dataclass
class Pace:
    """rate: times a second; burst: times at once."""

    rate: float
    burst: float
    clock: Callable[[], float] = time.monotonic
    _due: dict[str, float] = field(default_factory=dict)
    """When each name has come no more often than its rate allows."""

    def may(self, name: str) -> bool:
        """Whether somebody may come now. Only then it counts."""
        now = self.clock()
        name, due = self._known(name, now)
        if self._early_s(due, now) > 0:
            return False
        self._due[name] = due + 1 / self.rate
        return True

    def wait_s(self, name: str) -> float:
        """How long somebody has to wait who comes now and stays in the queue."""
        now = self.clock()
        name, due = self._known(name, now)
        self._due[name] = due + 1 / self.rate
        return max(0.0, self._early_s(due, now))

    def _early_s(self, due: float, now: float) -> float:
        return due - now - (self.burst - 1) / self.rate

    def _known(self, name: str, now: float) -> tuple[str, float]:
        """The name that is kept, and when it is due."""
        if name not in self._due and len(self._due) >= MOST_NAMES:
            self._due = {name: due for name, due in self._due.items() if due > now}
            name = name if len(self._due) < MOST_NAMES else OTHERS
        return name, max(now, self._due.get(name, now))
