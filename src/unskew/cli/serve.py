"""`unskew serve`: the server of a federation, until it is stopped."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from unskew.cli.federation import FOLDER


def command(
    name: Annotated[str, typer.Argument(help="the federation")],
    folder: Annotated[Path, typer.Option(help="where federations are kept")] = FOLDER,
    bind: Annotated[str, typer.Option(help="the address to listen at; default: the host, if it is an address")] = "",
) -> None:
    """Run the server that sites connect to. Runs are started beside it, with `unskew run --on`."""
    from unskew.deploy.kept import kept
    from unskew.deploy.processes import Server
    from unskew.deploy.tickets import Coordinator

    home = Coordinator.open(folder / name)

    def say(text: str) -> None:
        print(text, flush=True)

    server = Server(home, bind, say)
    tls = "TLS on · node authentication on" if home.tls else "TLS OFF · node authentication OFF"
    say(f"{home.name}  {server.bind}:{home.port}  {tls} · requests and replies signed · telemetry off (Flower's too)")
    say(f"admitted {len(home.admitted())} of {len(home.sites)} sites")
    if server.bind not in ("127.0.0.1", "localhost"):
        say("fence    let sites reach /v1/fleet only: whoever reaches /v1/control can have code run at every site")
    with kept(server.program):
        while True:
            server.tend()
            time.sleep(1)
