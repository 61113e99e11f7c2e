"""`unskew attach`: follow a run over a network that another command has started."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    run: Annotated[Path, typer.Argument(help="the folder of a run over a network")],
    stop: Annotated[bool, typer.Option("--stop", help="end the run; every finished round is saved")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="print the result as JSON and nothing else")
    ] = False,
) -> None:
    """Follow a run until it ends, and show its result. Ctrl-C detaches from the run without ending it."""
    from unskew.cli import remote_run
    from unskew.errors import Terminated
    from unskew.federation.coordinator.orders import RunStart
    from unskew.federation.tickets import Coordinator

    started = RunStart.read(run)
    home = Coordinator.open(remote_run.read_order(run).federation)
    if stop:
        from unskew.federation.coordinator import superlink  # needs Flower

        superlink.stop(home, started.number)
    try:
        remote_run.show(home, run, started, as_json)
    except (KeyboardInterrupt, Terminated):
        if not as_json:
            remote_run.print_text(
                f"\nDetached; the run goes on. Follow it again: unskew attach {run}   End it: add --stop"
            )
        raise
