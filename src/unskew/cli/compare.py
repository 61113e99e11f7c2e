"""`unskew compare`: several methods and seeds on the same partitions and absences."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from unskew.cli.options import parts_arguments, with_settings
from unskew.errors import Terminated


@with_settings(leave_out=("seed",))
def command(
    methods: Annotated[list[str], typer.Argument(help="methods to compare, like fedavg flea rebafl fedavg+fedrdn")],
    seeds: Annotated[int, typer.Option(help="how many seeds, from 0")] = 3,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="an argument of a part, for every method that has it: flea.alpha=0.1"),
    ] = None,
    references: Annotated[bool, typer.Option(help="add the rows local-only and centralised")] = True,
    processes: Annotated[int, typer.Option(help="runs at a time; 0: one a core")] = 0,
    target: Annotated[
        float | None, typer.Option(help="the score for the column 'bytes to reach it'; default: 95 % of the best")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="settings from a YAML file; options given here come on top")
    ] = None,
    name: Annotated[str | None, typer.Option(help="the comparison's name; default: compare and a number")] = None,
    folder: Annotated[Path, typer.Option(help="where runs are kept")] = Path("runs"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show the partition and the plan, then stop")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the table as JSON and nothing else")] = False,
    options: dict[str, Any] | None = None,
) -> None:
    """Compare methods: mean and standard deviation over seeds, paired tests, and a report."""
    from unskew.config import build, given
    from unskew.core.method import Method
    from unskew.engine import cells
    from unskew.engine.folder import check_name, fresh

    values = {**(given(config) if config else {}), **(options or {})}
    if set_:
        values["set"] = parts_arguments(set_)
    settings = build({**values, "method": methods[0]})
    wanted = [*methods, *([cells.LOCAL, cells.CENTRALISED] if references else [])]
    for method in wanted:
        if method != cells.CENTRALISED:
            Method.parse(method)
    at = folder / check_name(name) if name else fresh(folder, "compare")
    plan = cells.plan(at, wanted, list(range(seeds)), values)
    if not as_json:
        _introduce(settings, wanted, seeds)
    if dry_run:
        return
    cells.describe(at, wanted, list(range(seeds)), values)
    finish(at, plan, processes, target, as_json)


def again(at: Path, as_json: bool) -> None:
    """Finish a comparison that was interrupted."""
    import yaml

    from unskew.engine import cells

    described = yaml.safe_load((at / "compare.yaml").read_text())
    plan = cells.plan(at, described["methods"], described["seeds"], described["settings"])
    finish(at, plan, 0, None, as_json)


def finish(at: Path, plan: list[Any], processes: int, target: float | None, as_json: bool) -> None:
    """Train the cells under a live table; then the final table, the report, and what to do next."""
    from unskew.engine import cells, setup
    from unskew.report import page, read, stats, tables

    watch = Watch(plan, quiet=as_json)
    try:
        with watch:
            cells.run_all(plan, processes or setup.cores(), watch.look)
    except (KeyboardInterrupt, Terminated):
        print(f"\nStopped by you; every run is saved. Go on with: unskew resume {at}")
        raise
    rows = stats.summary_table(read.read_comparison(at), target=target)
    found = tables.as_json(rows)
    (at / "compare.json").write_text(json.dumps(found, indent=1))
    page.write_report(at, at / "report.html", target=target)
    if as_json:
        print(json.dumps({"comparison": str(at), "rows": found}))
        return
    print(tables.plain(rows) if not sys.stdout.isatty() else "")
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(tables.rich_table(rows))
    print(f"report  {at / 'report.html'}")


def _introduce(settings: Any, methods: list[str], seeds: int) -> None:
    from unskew.core.method import Method
    from unskew.data import preview
    from unskew.engine.cells import federation_for

    federation = federation_for(settings, Method())
    print(preview.terminal(federation))
    print(f"plan   {len(methods)} methods x {seeds} seeds x {settings.rounds} rounds: {', '.join(methods)}")
    if settings.availability != "full":
        print(f"absent {settings.availability}: every method sees the same absences")
    sys.stdout.flush()


class Watch:
    """The cells as they train: a live table on a terminal, a line per finished run when piped."""

    def __init__(self, plan: list[Any], quiet: bool):
        self.plan, self.quiet, self.told = plan, quiet, set()
        self.live: Any = None
        self.began = time.monotonic()

    def __enter__(self) -> Watch:
        if not self.quiet and sys.stdout.isatty():
            from rich.live import Live

            self.live = Live(self._table(), refresh_per_second=4)
            self.live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.live:
            self.live.update(self._table())
            self.live.__exit__(*error)

    def look(self, plan: list[Any]) -> None:
        if self.live:
            self.live.update(self._table())
        elif not self.quiet:
            for cell in plan:
                if cell.done and cell.path not in self.told:
                    self.told.add(cell.path)
                    done = f"{len(self.told)}/{len(plan)}"
                    score = "own model" if cell.score != cell.score else f"global {cell.score:6.1%}"
                    print(
                        f"{done:>7}  {cell.method:<28} seed {cell.seed}  {score:<13}  {cell.megabytes:8.1f} MB",
                        flush=True,
                    )

    def _table(self) -> Any:
        from rich.table import Table

        from unskew.cli.screen import clock

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
        by_method: dict[str, list[Any]] = {}
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
                f"{sum(c.megabytes for c in group) / len(group):.1f}" if seen else "",
            )
        done = sum(c.t for c in self.plan) / max(1, sum(c.settings.rounds for c in self.plan))
        spent = time.monotonic() - self.began
        table.caption = f"{done:.0%} done, {clock(spent * (1 - done) / done)} left" if done > 0.01 else "starting"
        table.caption_justify = "left"
        return table


def _mean(cells: list[Any], key: str) -> str:
    values = [v for c in cells if (v := getattr(c, key)) == v]
    return f"{sum(values) / len(values):.1%}" if values else "-"
