"""Many runs as they train: a live table on a terminal, a line per finished run when piped."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from unskew.cli.screen import clock
from unskew.comparison.cells import CENTRALISED, LOCAL, Cell


class Progress:
    """Shown from `with` to its end. look: shows what the cells know by now."""

    def __init__(self, plan: Sequence[Cell], quiet: bool = False):
        self.plan, self.quiet, self.told = plan, quiet, set()
        self.live: Any = None
        self.began: tuple[float, float] | None = None

    def __enter__(self) -> Progress:
        if not self.quiet and sys.stdout.isatty():
            from rich.live import Live

            self.live = Live(self.table(), refresh_per_second=4)
            self.live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.live:
            self.live.update(self.table())
            self.live.__exit__(*error)

    def look(self, plan: Sequence[Cell]) -> None:
        self.began = self.began or (time.monotonic(), self._done())
        if self.live:
            self.live.update(self.table())
        elif not self.quiet:
            for cell in plan:
                if cell.done and cell.path not in self.told:
                    self.told.add(cell.path)
                    done = f"{len(self.told)}/{len(plan)}"
                    score = "own model" if cell.score != cell.score else f"global {cell.score:6.1%}"
                    print(
                        f"{done:>7}  {cell.method:<28} seed {cell.seed}  {score:<13}  {_sent([cell]):>8} MB",
                        flush=True,
                    )

    def table(self) -> Any:
        """A line a method, over its seeds, and how long the rest will take."""
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for title, justify in (
            ("method", "left"),
            ("seeds", "right"),
            ("round", "right"),
            ("global", "right"),
            ("clients mean / worst", "right"),
            ("up+down MB", "right"),
        ):
            table.add_column(title, justify=justify)
        by_method: dict[str, list[Cell]] = {}
        for cell in self.plan:
            by_method.setdefault(cell.method, []).append(cell)
        for method, group in by_method.items():
            seen = [c for c in group if c.t]
            table.add_row(
                method,
                f"{sum(c.done for c in group)}/{len(group)}",
                f"{max(c.t for c in group)}/{group[0].settings.rounds}",
                _mean(seen, "score"),
                f"{_mean(seen, 'client_mean')} / {_mean(seen, 'client_worst')}",
                _sent(group) if seen else "",
            )
        table.caption = self._caption()
        table.caption_justify = "left"
        return table

    def _caption(self) -> str:
        """How much is done, and how long the rest takes at the pace since the first look: what was done before tells none."""
        done, (began, before) = self._done(), self.began or (0.0, 1.0)
        gained = done - before
        left = f", {clock((time.monotonic() - began) * (1 - done) / gained)} left" if gained > 0.01 else ""
        return f"{done:.0%} done{left}"

    def _done(self) -> float:
        """The share of all rounds."""
        return sum(c.t for c in self.plan) / max(1, sum(c.settings.rounds for c in self.plan))


def _sent(cells: list[Cell]) -> str:
    """Megabytes a run, both ways; references share nothing."""
    if cells[0].method in (LOCAL, CENTRALISED):
        return "–"
    return f"{sum(c.megabytes for c in cells) / len(cells):.1f}"


def _mean(cells: list[Cell], key: str) -> str:
    values = [v for c in cells if (v := getattr(c, key)) == v]
    return f"{sum(values) / len(values):.1%}" if values else "-"
