"""`unskew attach`: follow a run over a network that another command has started, and that may have outlived it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    run: Annotated[Path, typer.Argument(help="the folder of a run over a network")],
    stop: Annotated[bool, typer.Option("--stop", help="end the run; every finished round is saved")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON and nothing else")] = False,
) -> None:
    """Follow a run until it ends, and show its result. Ctrl-C detaches from it without ending it."""
    from unskew.cli import deployed
    from unskew.deploy.following import Started
    from unskew.deploy.tickets import Coordinator
    from unskew.errors import Terminated

    started = Started.read(run)
    home = Coordinator.open(deployed.ordered(run).federation)
    if stop:
        from unskew.deploy import submit  # which needs Flower

        submit.stop(home, started.number)
    try:
        deployed.show(home, run, started, as_json)
    except (KeyboardInterrupt, Terminated):
        if not as_json:
            deployed.aloud(f"\nDetached; the run goes on. Follow it again: unskew attach {run}   End it: add --stop")
        raise
