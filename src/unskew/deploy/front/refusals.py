"""Who was refused, and why: a line for the first attempt, then fewer and fewer, each with the number of attempts.

A flood from one address therefore writes a few lines an hour, one from many addresses at most a line a minute, and none
of their attempts goes uncounted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

from unskew.deploy.front.pace import Pace

MARK = "refused "
"""How these lines begin in the front's log; the rest is JSON."""
FIRST_S, LONGEST_S = 2.0, 3600.0
"""How long further attempts are gathered before the next line. Doubled with every line, up to the second number."""
LINES_A_S, AT_ONCE = 1 / 60, 60
"""Lines of all addresses and reasons together: a second, and at once."""
MOST_PAIRS = 32
"""How many addresses and reasons are kept apart; the others are counted together."""
OTHERS = "other addresses"


@dataclass
class _Pair:
    """One address and reason. times: attempts since its last line; due: when its next line may be written."""

    times: int = 0
    due: float = 0.0
    pause_s: float = FIRST_S


class Refusals:
    """write: takes the lines."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic):
        self.write, self.clock = write, clock
        self._pace = Pace(LINES_A_S, AT_ONCE, clock)
        self._pairs: dict[tuple[str, str], _Pair] = {}

    def note(self, who: str, why: str) -> None:
        """Count one attempt. who: an address, or the name of a site."""
        if (who, why) not in self._pairs and len(self._pairs) >= MOST_PAIRS:
            who = OTHERS
        self._pairs.setdefault((who, why), _Pair()).times += 1
        self.flush()

    def flush(self, everything: bool = False) -> None:
        """Write the lines that are due; `everything`: also those that are not. Forget whoever stays away."""
        now = self.clock()
        for (who, why), pair in list(self._pairs.items()):
            if pair.times and (everything or (now >= pair.due and self._pace.may("a line"))):
                self.write(MARK + json.dumps({"who": who, "why": why, "times": pair.times}))
                pair.times, pair.due = 0, now + pair.pause_s
                pair.pause_s = min(2 * pair.pause_s, LONGEST_S)
            elif not pair.times and now >= pair.due + pair.pause_s:
                del self._pairs[who, why]


def read(line: str) -> dict[str, str | int] | None:
    """The facts of such a line (who, why, times); None if it is another one."""
    if not line.startswith(MARK):
        return None
    try:
        return json.loads(line.removeprefix(MARK))
    except ValueError:
        return None
