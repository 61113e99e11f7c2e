"""Output of commands: a live table on a terminal, plain lines in a pipe, only JSON with --json."""

from __future__ import annotations

import json
import math
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from unskew.cli.plain_output import raw_output
from unskew.comparison.progress import Cell
from unskew.errors import NothingUsed
from unskew.report.analysis.number_formats import clock
from unskew.scores import Kind, kind

MOST_LOSS = 1e5
"""Losses of this size or more, from diverging training, are written with an exponent to save space."""


class Screen:
    """Shows the progress of one run. rounds: the number of rounds. quiet: print nothing."""

    def __init__(self, rounds: int, quiet: bool = False):
        self.rounds, self.quiet = rounds, quiet
        self._live = sys.stdout.isatty() and not quiet
        self._began: float | None = None
        self._before_first = 0
        self._last_line = -1.0
        self._open = False
        """Whether the cursor is at the end of a line that the next round overwrites."""

    def say(self, text: str) -> None:
        """Print a text, on a new line if rounds are overwriting the current one."""
        if not self.quiet:
            print("\n" + text.removeprefix("\n") if self._open else text, flush=True)
            self._open = False

    def leave_line(self) -> None:
        """Begin a new line if the next round would overwrite the current one."""
        if self._open:
            print(flush=True)
            self._open = False

    def round(self, summary: Any, scores: list[str]) -> None:
        """Show a finished round: on a terminal, a line that is overwritten; in a pipe, a line for each tenth
        of the run.

        summary: the loop's summary of the round. scores: the columns of `scores.latest`.
        """
        if self._began is None:
            self._began, self._before_first = time.monotonic() - summary.seconds, summary.t - 1
        last = summary.t == self.rounds
        columns = self._columns(summary, scores)
        if self._live:
            print("\r\x1b[2K", end="", file=raw_output())
            print(self._fitting(columns), end="\n" if last else "", flush=True)
            self._open = not last
        elif last or summary.t >= self._last_line + max(1, self.rounds / 10):
            self._last_line = summary.t
            self.say("  ".join(columns))

    def _fitting(self, columns: list[str]) -> str:
        """The columns that fit into one line of the terminal, because a wrapped line cannot be
        overwritten."""
        width = shutil.get_terminal_size().columns - 1
        while len(columns) > 1 and len("  ".join(columns)) > width:
            columns = columns[:-1]
        return "  ".join(columns)[:width]

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
    """A value as standard JSON, with null for numbers that are not finite (diverged training has such a
    loss)."""
    return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def next_steps(path: Path) -> str:
    """Lines that name a run's report and the command that repeats the run."""
    return f"report  {path / 'report.html'}\nagain   unskew run {shlex.quote(str(path / 'config.yaml'))}"


COLUMNS = ("method", "seeds", "round", "global", "clients mean / worst")


class Progress:
    """Shows several runs from the first `look` until `close` or the end of `with`. quiet: show nothing."""

    def __init__(self, runs: Sequence[Cell] = (), quiet: bool = False):
        self.runs, self.quiet = list(runs), quiet
        self._live: Live | None = None
        self._reported: set[Path] = set()
        self._began: tuple[float, float] | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def say(self, text: str) -> None:
        """Print a text, below the table of the runs so far."""
        self.close()
        if not self.quiet:
            print(text, flush=True)

    def close(self) -> None:
        """Leave the table on the terminal as it is now."""
        if self._live:
            self._live.update(self.table())
            self._live.stop()
            self._live = None

    def look(self, runs: Sequence[Cell]) -> None:
        """Show the current state of the runs. A different list of runs begins a new table."""
        if [cell.path for cell in runs] != [cell.path for cell in self.runs]:
            self.close()
            self.runs, self._reported, self._began = list(runs), set(), None
        self._began = self._began or (time.monotonic(), self._share_done())
        if self.quiet:
            return
        if sys.stdout.isatty():
            if self._live is None:
                console = Console(file=raw_output())
                self._live = Live(self.table(), console=console, refresh_per_second=4)
                self._live.start()
            self._live.update(self.table())
        else:
            self._report_finished()

    def _report_finished(self) -> None:
        """Print a line for each run that has finished since the last look."""
        for cell in self.runs:
            if cell.done and cell.path not in self._reported:
                self._reported.add(cell.path)
                count = f"{len(self._reported)}/{len(self.runs)}"
                print(f"{count:>7}  {cell.method:<28} seed {cell.seed}  {_outcome(cell)}", flush=True)

    def table(self) -> Table:
        """A table with a line for each method, over its seeds, with the share done and the time left below
        it."""
        table = Table(box=None, pad_edge=False, caption=self._caption(), caption_justify="left")
        for title in COLUMNS:
            table.add_column(title, justify="left" if title == "method" else "right")
        by_method: dict[str, list[Cell]] = {}
        for cell in self.runs:
            by_method.setdefault(cell.method, []).append(cell)
        for method, group in by_method.items():
            begun, main = [cell for cell in group if cell.t], kind(group[0].metric)
            table.add_row(
                Text(method),  # as Text, because arguments such as [head] are no markup
                f"{sum(cell.done for cell in group)}/{len(group)}",
                f"{max(cell.t for cell in group)}/{group[0].settings.rounds}",
                _mean(main, [cell.score for cell in begun]),
                f"{_mean(main, [cell.client_mean for cell in begun])} /"
                f" {_mean(main, [cell.client_worst for cell in begun])}",
            )
        return table

    def _caption(self) -> str:
        """The caption `40% done, 2:30 left`, at the pace since the first look."""
        done, (began, before) = self._share_done(), self._began or (0.0, 1.0)
        gained = done - before
        left = f", {clock((time.monotonic() - began) * (1 - done) / gained)} left" if gained > 0.01 else ""
        return f"{done:.0%} done{left}"

    def _share_done(self) -> float:
        """The share of all rounds of all runs that is done, in [0, 1]."""
        return sum(cell.t for cell in self.runs) / max(1, sum(cell.settings.rounds for cell in self.runs))


def _outcome(cell: Cell) -> str:
    """The outcome of a finished run: its last score, or the reason why it has none."""
    if cell.code == NothingUsed.exit_code:
        return "not trained"
    return "own model" if cell.score != cell.score else f"global {kind(cell.metric).written(cell.score):>6}"


def _mean(main: Kind, values: list[float]) -> str:
    """The mean of the known values as text; a hyphen if there are none."""
    known = [value for value in values if value == value]
    return main.written(sum(known) / len(known)) if known else "-"
