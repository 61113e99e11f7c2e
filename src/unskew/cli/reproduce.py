"""`unskew reproduce`: a published table, run here, with the paper's number beside ours and a verdict on every claim."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from unskew.errors import Terminated

SEEDS = 3
"""How many are run unless told."""


def command(
    experiment: Annotated[
        str,
        typer.Argument(help="a table by name, like flea-table1 (`unskew list experiments`), or a .yaml of your own"),
    ],
    rows: Annotated[
        list[str] | None,
        typer.Option(help="only this row, or all rows that begin so where none has this name (repeatable)"),
    ] = None,
    methods: Annotated[list[str] | None, typer.Option(help="only these methods of the table (repeatable)")] = None,
    add: Annotated[
        list[str] | None, typer.Option(help="also this method, like my_method.py or flea+scaffold (repeatable)")
    ] = None,
    seeds: Annotated[int, typer.Option(help="how many seeds, from 0")] = SEEDS,
    scale: Annotated[float, typer.Option(help="run this share of the rounds; the table says so")] = 1.0,
    tune: Annotated[
        int, typer.Option(help="first try so many settings of every method on held-out training samples")
    ] = 0,
    sampler: Annotated[
        str, typer.Option(help="how settings are tried: random, or tpe (needs unskew\\[sweep])")
    ] = "random",
    processes: Annotated[int, typer.Option(help="runs at a time; 0: one a core")] = 0,
    folder: Annotated[Path, typer.Option(help="where runs are kept")] = Path("runs"),
    keep: Annotated[
        Path | None, typer.Option(help="also write JSON and Markdown into this folder, and its README.md")
    ] = None,
    page_name: Annotated[
        str, typer.Option("--page", help="what the result's files are called; the table's name unless said")
    ] = "",
    anew: Annotated[bool, typer.Option("--anew", help="run again what another version of unskew has run")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="show the runs and how long they would take, then stop")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON and nothing else")] = False,
) -> None:
    """Run a published table. Finished runs are kept and not run again, so it can be stopped and widened at any time."""
    from unskew.cli.progress import Progress
    from unskew.comparison import cells
    from unskew.comparison.rehearsal import rehearse
    from unskew.engine import resolve
    from unskew.engine.disk.folder import check_name
    from unskew.errors import UsageError
    from unskew.experiments import files, kept, page, plan
    from unskew.experiments import tune as tuning
    from unskew.report.numbers import plural

    if not 0 < scale <= 1:
        raise UsageError("E109", f"scale should be above 0 and at most 1, got {scale:g}.")
    if seeds < 1 or tune < 0:
        what, value = ("seeds should be at least 1", seeds) if seeds < 1 else ("tune should be at least 0", tune)
        raise UsageError("E109", f"{what}, got {value}.")
    made = plan.widened(files.load(experiment), add or ())
    called = check_name(page_name or made.name)
    runnable, chosen, missing = plan.chosen(made, rows or (), [*methods, *(add or ())] if methods else ())
    at = folder / "reproduce"
    cores, began = processes or resolve.cores(), time.monotonic()

    def run(wanted: Sequence[cells.Cell]) -> None:
        if anew:
            cells.discard(cells.by_others(c.path for c in wanted))
        cells.announce(at, wanted)
        with Progress(wanted, quiet=as_json) as progress:
            cells.run_all(wanted, cores, progress.look)

    if not as_json:
        _introduce(made, runnable, missing)
    rehearse(plan.cells(made, runnable, chosen, range(1), scale, at).values())
    if tune and not as_json:
        print(
            f"tuning  {plural(tune, 'trial')} for each of {plural(len(chosen), 'method')} on {runnable[0].name}, validated "
            "on a fifth of the training samples; not counted in the plan",
            flush=True,
        )
    try:
        tried: dict[str, tuning.Tuned] = {}
        if tune and not dry_run:
            made, tried = tuning.tune(made, runnable[0], chosen, tune, scale, sampler, at, run)
        found = plan.cells(made, runnable, chosen, range(seeds), scale, at)
        todo = list({c.path: c for c in found.values()}.values())
        old = cells.by_others(c.path for c in todo)
        if not as_json:
            _count(todo, old if anew else [], scale, cores)
            if old:
                print(_older(old, anew))
        if dry_run:
            return
        run(todo)
    except (KeyboardInterrupt, Terminated):
        print("\nStopped by you; every run is saved. Go on with the same command.")
        raise
    asked = {"rows": rows, "methods": methods, "add": add, "seeds": seeds, "scale": scale, "tune": tune}
    words = _words({**asked, "page": page_name, "sampler": sampler if tune else USUAL["sampler"]})
    command = shlex.join(["unskew", "reproduce", experiment, *words])
    facts = {"page": called, "command": command, "seeds": seeds, "scale": scale}
    if tried:
        facts |= {"tune": tune, "sampler": sampler, "tuned": tuning.as_json(made, tried)}
    result = _judged(made, found, facts | {"seconds_now": round(time.monotonic() - began, 1)})
    shown = kept.keep(at / "pages", result)
    if keep:
        kept.document(keep, result)
    if as_json:
        print(json.dumps(result))
        return
    print(page.plain(result))
    print(f"\nreport  {shown}, beside it .md, .json, .csv, .tex, and index.html of every table run here")
    if keep:
        print(f"kept    {keep / called}.md and .json, {keep / 'README.md'}")


def _older(old: Sequence[Path], anew: bool) -> str:
    """What is told of runs by another unskew than this one."""
    from unskew.comparison import cells

    makers = ", ".join(f"{n} by {who}" for who, n in cells.makers(old).items())
    return f"older   {makers}; " + (
        "run again" if anew else "kept, and gone on with where unfinished; --anew runs them again"
    )


def _introduce(made: Any, rows: list[Any], missing: list[Any]) -> None:
    """What it is, and which rows run."""
    print("\n".join(line for line in (made.title, made.paper) if line))
    for row in rows:
        print(f"row     {row.name}{': ' + row.note if row.note else ''}")
    for row in missing:
        print(f"left    {row.name}: no data ({row.data})")
    sys.stdout.flush()


def _count(todo: list[Any], again: Sequence[Path], scale: float, cores: int) -> None:
    """How many runs, and how long the rest of them takes."""
    from unskew.cli.screen import clock
    from unskew.experiments import estimate
    from unskew.report.numbers import plural

    left = [c for c in todo if c.path in again or not c.ended]
    print(
        f"plan    {plural(len(todo), 'run')}, {len(todo) - len(left)} of them done already"
        + (f"; {scale:g} of the rounds" if scale != 1 else "")
    )
    if left:
        seconds = estimate.together([c.settings for c in left], cores)
        print(
            f"time    about {clock(seconds)} on {plural(cores, 'core')} (one step of each model was timed, the rest counted)"
        )
    sys.stdout.flush()


USUAL = {"rows": None, "methods": None, "add": None, "scale": 1.0, "tune": 0, "sampler": "random", "page": ""}
"""What a command need not say."""


def _words(asked: dict[str, Any]) -> list[str]:
    """What was asked for, without what changes no number."""
    words = []
    for name, value in asked.items():
        if name not in USUAL or (value or None) != (USUAL[name] or None):
            each = value if isinstance(value, list) else [f"{value:g}" if isinstance(value, float) else str(value)]
            words += [w for v in each for w in (f"--{name}", v)]
    return words


def _judged(made: Any, found: Any, facts: dict[str, Any]) -> dict[str, Any]:
    """The runs of a table read, summed up and held against its claims, with where and when."""
    import torch

    from unskew.comparison import cells
    from unskew.experiments import verdict
    from unskew.report import read
    from unskew.revision import revision

    runs: dict[tuple[str, str], list[Any]] = {}
    for (row, method, _), cell in found.items():
        runs.setdefault((row, method), []).append(read.read_run(cell.path, method))
    trained = sum(float(r.series("train", "seconds")[1].sum()) for group in runs.values() for r in group)
    facts |= {
        "unskew": revision(),
        "made_by": cells.makers(cell.path for cell in found.values()),
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}",
        "hours": round(trained / 3600, 3),
    }
    entries = verdict.entries(made, runs)
    return verdict.as_json(made, entries, verdict.verdicts(made, entries), runs, facts)
