"""`unskew resume`: continue a run, or a comparison, from its last checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer


def command(
    run: Annotated[Path, typer.Argument(help="the folder of a run or of a comparison")],
    rounds: Annotated[
        int | None,
        typer.Option(help="more rounds than the run had, which may have ended; a simulated run only"),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option("--without", help="over a network: leave this site out from now on (repeatable)"),
    ] = None,
    wait: Annotated[
        str,
        typer.Option(
            help="over a network: how long to wait for missing sites: 10m, 24h (default: as before)"
        ),
    ] = "",
    on: Annotated[
        str,
        typer.Option(
            help=(
                "where to train: here, or a Ray cluster, such as ray (default: a comparison as before, a run"
                " here)"
            )
        ),
    ] = "",
    method: Annotated[
        list[str] | None,
        typer.Option(help="FILE.py of a run with a Part in a Python file (repeatable)"),
    ] = None,
    model: Annotated[
        str, typer.Option(help="FILE.py:FUNCTION of a run whose model is in a Python file")
    ] = "",
    metrics: Annotated[
        str, typer.Option(help="FILE.py:FUNCTION of a run with a metric in a Python file")
    ] = "",
    loss: Annotated[str, typer.Option(help="FILE.py:FUNCTION of a run with a loss in a Python file")] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="print the result as JSON and nothing else")
    ] = False,
) -> None:
    """Continue a run to the same bits as if it had never stopped, or as if it had had more rounds from the
    start.

    A Python file is imported only if this command names it, too.
    """
    from unskew.system import python_files

    with python_files.restrict(*(method or ()), model, loss, *metrics.split(",")):
        _resume(run, rounds, without or (), wait, on, as_json)


def _resume(run: Path, rounds: int | None, without: Sequence[str], wait: str, on: str, as_json: bool) -> None:
    from unskew.cli import compare
    from unskew.cli.run import finish
    from unskew.cli.screen import Screen
    from unskew.comparison import cluster as comparison_cluster
    from unskew.comparison.ray_clients import train_clients_on
    from unskew.errors import UsageError
    from unskew.runs.run_folder import RunFolder

    if on and (run / "deploy.json").exists():
        raise UsageError("E109", f"--on says where a simulation trains, and {run} has sites of its own.")
    if (without or wait) and not (run / "deploy.json").exists():
        option = "--without names" if without else "--wait waits for"
        raise UsageError("E109", f"{option} sites of a run over a network, and {run} is none.")
    if rounds is not None and ((run / "deploy.json").exists() or (run / "compare.yaml").exists()):
        raise UsageError("E109", f"--rounds continues one simulated run, and {run} is none.")
    if (run / "compare.yaml").exists():
        compare.resume(run, as_json, on)
    elif (run / "deploy.json").exists():
        from unskew.cli.remote_run import conduct

        conduct(run, as_json, tuple(without), wait)
    else:
        cluster, folder = comparison_cluster.parse(on), RunFolder.open(run, rounds)
        if cluster:
            folder.run = train_clients_on(folder.run, cluster)
        finish(folder, Screen(folder.run.settings.rounds, quiet=as_json), as_json)
