"""What commands print: a live table on a terminal, plain lines when piped, nothing but JSON with --json."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from unskew.report.numbers import clock


class Screen:
    """Progress of one run. `quiet` prints nothing."""

    def __init__(self, rounds: int, quiet: bool = False):
        self.rounds, self.quiet = rounds, quiet
        self.live = sys.stdout.isatty() and not quiet
        self.began: float | None = None
        self.first = 0
        self.shown = -1.0

    def say(self, text: str) -> None:
        if not self.quiet:
            print(text, flush=True)

    def round(self, told: Any, scores: dict[str, float]) -> None:
        """One line per round on a terminal, rewritten in place; when piped, a line about every tenth of the run."""
        if self.began is None:
            self.began, self.first = time.monotonic() - told.seconds, told.t - 1
        pace = (time.monotonic() - self.began) / (told.t - self.first)
        left = pace * (self.rounds - told.t)
        dropped = f"  {told.dropped} dropped" if told.dropped else ""
        parts = [
            f"round {told.t:>4}/{self.rounds}",
            f"{told.answered:>3}/{told.asked} clients{dropped}",
            f"loss {told.loss:6.3f}",
        ]
        parts += [f"{name} {value:6.1%}" for name, value in scores.items()]
        line = "  ".join([*parts, f"{pace:5.2f} s/round", f"{clock(left)} left"])
        if self.live:
            print("\r\x1b[2K" + line, end="\n" if told.t == self.rounds else "", flush=True)
        elif told.t == self.rounds or told.t >= self.shown + max(1, self.rounds / 10):
            self.shown = told.t
            self.say(line)


def next_steps(path: Path) -> str:
    return f"report  {path / 'report.html'}\nagain   unskew run {path / 'config.yaml'}"
