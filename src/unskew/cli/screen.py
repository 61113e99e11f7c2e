"""What commands print: a live table on a terminal, plain lines when piped, nothing but JSON with --json."""

from __future__ import annotations

import json
import math
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from unskew.report.numbers import clock

MOST_LOSS = 1e5
"""A loss from here on, of training that diverges, is written with an exponent, for it would push the rest off the line."""


class Screen:
    """Shows the progress of one run. rounds: how many it has; quiet: print nothing."""

    def __init__(self, rounds: int, quiet: bool = False):
        self.rounds, self.quiet = rounds, quiet
        self._live = sys.stdout.isatty() and not quiet
        self._began: float | None = None
        self._before_first = 0
        self._last_line = -1.0
        self._open = False
        """Whether the cursor stands behind a line that the next round rewrites."""

    def say(self, text: str) -> None:
        """Print a text; one that comes while rounds rewrite their line leaves that line as it stands and begins below it."""
        if not self.quiet:
            print("\n" * self._open + text.removeprefix("\n" * self._open), flush=True)
            self._open = False

    def leave_line(self) -> None:
        """Begin a new line if the cursor stands behind one that the next round would rewrite."""
        if self._open:
            print(flush=True)
            self._open = False

    def round(self, summary: Any, scores: list[str]) -> None:
        """Show a finished round: a line rewritten in place on a terminal, a line for each tenth of the run when piped.

        summary: the loop's account of the round; scores: columns, as `scores.latest` writes them.
        """
        if self._began is None:
            self._began, self._before_first = time.monotonic() - summary.seconds, summary.t - 1
        last = summary.t == self.rounds
        columns = self._columns(summary, scores)
        if self._live:
            print("\r\x1b[2K" + self._fitting(columns), end="\n" if last else "", flush=True)
            self._open = not last
        elif last or summary.t >= self._last_line + max(1, self.rounds / 10):
            self._last_line = summary.t
            self.say("  ".join(columns))

    def _fitting(self, columns: list[str]) -> str:
        """The line without the columns for which the terminal is too narrow; a wrapped one could not be rewritten."""
        width, shown = shutil.get_terminal_size().columns - 1, len(columns)
        while shown > 1 and len("  ".join(columns[:shown])) > width:
            shown -= 1
        return "  ".join(columns[:shown])[:width]

    def _columns(self, summary: Any, scores: list[str]) -> list[str]:
        pace = (time.monotonic() - (self._began or 0.0)) / (summary.t - self._before_first)
        dropped = [f"{summary.dropped} dropped"] if summary.dropped else []
        return [
            f"round {summary.t:>4}/{self.rounds}",
            f"{summary.answered:>3}/{summary.asked} clients",
            *dropped,
            f"loss {summary.loss:.2e}" if abs(summary.loss) >= MOST_LOSS else f"loss {summary.loss:6.3f}",
            *scores,
            f"{pace:5.2f} s/round",
            f"{clock(pace * (self.rounds - summary.t))} left",
        ]


def json_of(value: Any) -> str:
    """A value as JSON that every program reads: null for a number that is not finite, as the loss of training that diverged."""
    return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def next_steps(path: Path) -> str:
    """Where the report of a run is, and the command that repeats the run."""
    return f"report  {path / 'report.html'}\nagain   unskew run {shlex.quote(str(path / 'config.yaml'))}"
