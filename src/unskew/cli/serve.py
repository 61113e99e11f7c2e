"""`unskew serve`: the server of a federation, until it is stopped."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from unskew.cli.admit import FOLDER


def command(
    name: Annotated[str, typer.Argument(help="the federation's name")],
    folder: Annotated[Path, typer.Option(help="where federations are kept")] = FOLDER,
    bind: Annotated[
        str, typer.Option(help="the address to listen at (default: the host if it is an address, else 0.0.0.0)")
    ] = "",
) -> None:
    """Run the server that sites connect to. Runs are started separately, with `unskew run --on`."""
    from unskew.deploy import serving
    from unskew.deploy.supervise import stopped_at_the_end
    from unskew.deploy.tickets import Coordinator

    home = Coordinator.open(folder / name)

    def say(text: str) -> None:
        print(text, flush=True)

    server = serving.begin(home, bind, say)
    tls = "TLS, for admitted keys only" if home.tls else "TLS DISABLED, so that anybody on this machine can connect"
    say(f"{home.name}  {server.bind}:{home.port}  {tls}; requests and replies signed; telemetry disabled")
    say(f"admitted {len(home.admitted())} of {len(home.sites)} sites")
    with stopped_at_the_end(server):
        while True:
            server.tend()
            time.sleep(0.3)
