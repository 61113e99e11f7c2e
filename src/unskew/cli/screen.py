"""What commands print: a live table on a terminal, plain lines when piped, nothing but JSON with --json."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any


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


def clock(seconds: float) -> str:
    whole = int(seconds)
    return (
        f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
        if whole >= 3600
        else f"{whole // 60}:{whole % 60:02d}"
    )


def size(bytes_: float) -> str:
    for unit in ("B", "KB", "MB"):
        if bytes_ < 1000:
            return f"{bytes_:.3g} {unit}"
        bytes_ /= 1000
    return f"{bytes_:.3g} GB"


def leaves(loop: Any) -> list[str]:
    """What leaves each client, before round 1: the weights and every declared Share, with bytes and who reads it."""
    w = loop.fed.net.weights()
    total = sum(w[n].numel() * w[n].element_size() for n in loop.trainer.sent)
    lines = [
        f"leaves each client  weights {size(total)} a round (read: {loop.method.weights_read})"
        if total
        else "leaves each client  no weights"
    ]
    for part in loop.method.parts:
        found = [(s, "a round") for s in part.shares(loop.fed).items()]
        found += [
            (s, "once" if trip.everyone else "a round") for trip in part.trips for s in trip.shares(loop.fed).items()
        ]
        grouped: dict[tuple[str, str, str, str], int] = {}
        for (leaf, share), often in found:
            name = (f"{part.name}/{leaf.split('/', 1)[0]}", often, share.reads, share.guarantee)
            grouped[name] = grouped.get(name, 0) + share.max_bytes
        lines += [
            f"{'':<20}{name} at most {size(bytes_)} {often} (read: {reads}, guarantee: {guarantee})"
            for (name, often, reads, guarantee), bytes_ in grouped.items()
        ]
    for part in loop.method.parts:
        lines += [f"{'':<20}{line}" for line in part.account(loop.federation.label_counts, loop.fed)]
    return lines


def next_steps(path: Path) -> str:
    return f"report  {path / 'report.html'}\nagain   unskew run {path / 'config.yaml'}"
