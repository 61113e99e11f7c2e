"""`unskew compare`: several methods and seeds on the same partitions and absences."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from unskew import disk
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
    from unskew.comparison import cells
    from unskew.comparison.rehearsal import rehearse
    from unskew.config import build, given
    from unskew.engine.disk.folder import check_name, fresh
    from unskew.methods import registry

    values = {**(given(config) if config else {}), **(options or {})}
    if set_:
        values["set"] = parts_arguments(set_)
    settings = build({**values, "method": methods[0]})
    wanted = [*methods, *([cells.LOCAL, cells.CENTRALISED] if references else [])]
    for method in wanted:
        if method != cells.CENTRALISED:
            registry.parse(method)
    at = folder / check_name(name) if name else fresh(folder, "compare")
    plan = cells.plan(at, wanted, list(range(seeds)), values)
    if not as_json:
        _introduce(settings, wanted, seeds)
    rehearse(plan)
    if dry_run:
        return
    cells.describe(at, wanted, list(range(seeds)), values)
    finish(at, plan, processes, target, as_json)


def again(at: Path, as_json: bool) -> None:
    """Finish a comparison that was interrupted."""
    from unskew.comparison import cells

    finish(at, cells.described(at), 0, None, as_json)


def finish(at: Path, plan: list[Any], processes: int, target: float | None, as_json: bool) -> None:
    """Train the cells under a live table; then the final table, the report, and what to do next."""
    from unskew.cli.progress import Progress
    from unskew.comparison import cells
    from unskew.engine import resolve
    from unskew.report import page, read, summary, tables

    try:
        with Progress(plan, quiet=as_json) as progress:
            cells.run_all(plan, processes or resolve.cores(), progress.look)
    except (KeyboardInterrupt, Terminated):
        print(f"\nStopped by you; every run is saved. Go on with: unskew resume {at}")
        raise
    rows = summary.summary_table(read.read_comparison(at), target=target)
    found = tables.as_json(rows)
    disk.replace(at / "compare.json", json.dumps(found, indent=1))
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
    from unskew.comparison.cells import federation_for
    from unskew.core.method import Method
    from unskew.data import preview

    federation = federation_for(settings, Method())
    print(preview.terminal(federation))
    print(f"plan   {len(methods)} methods x {seeds} seeds x {settings.rounds} rounds: {', '.join(methods)}")
    if settings.availability != "full":
        print(f"absent {settings.availability}: every method sees the same absences")
    sys.stdout.flush()
