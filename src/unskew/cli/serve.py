"""`unskew serve`: run the server of a federation until it is stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from unskew.cli.admit import FOLDER

if TYPE_CHECKING:
    from unskew.federation.programs import Log
    from unskew.federation.prometheus import Figures

METRICS = (
    "where Prometheus reads figures (/metrics, /healthz); on loopback unless HOST is given (default: nowhere)"
)
LOG_FORMAT = "text, or json: one object a line, also in the log files of the programs that it starts"


def command(
    name: Annotated[str, typer.Argument(help="the federation's name")],
    folder: Annotated[Path, typer.Option(help="where federations are kept")] = FOLDER,
    bind: Annotated[
        str,
        typer.Option(
            help=(
                "the address to listen at (default: the host if it is an address, else 0.0.0.0; ::, IPv4 and"
                " IPv6)"
            )
        ),
    ] = "",
    metrics: Annotated[str, typer.Option(metavar="[HOST:]PORT", help=METRICS)] = "",
    log_format: Annotated[Literal["text", "json"], typer.Option(help=LOG_FORMAT)] = "text",
) -> None:
    """Run the server that sites connect to. `unskew run --on` starts runs separately."""
    from unskew.federation.programs import Log

    say = Log(log_format, {"program": "serve", "federation": name})
    with say.to_the_end():
        _serve(folder / name, bind, metrics, say)


def publish(where: str, figures: Figures, say: Callable[[str], None]) -> None:
    """Serve these figures at this address until the program ends. Raises UsageError (E109)."""
    from unskew.federation.prometheus import Endpoint

    endpoint = Endpoint(where, figures)
    endpoint.start()
    say(f"metrics {endpoint.url}{endpoint.warning}")


def _serve(folder: Path, bind: str, metrics: str, say: Log) -> None:
    from unskew.federation.addresses import host_port
    from unskew.federation.programs import stop_at_end
    from unskew.federation.tickets import Coordinator

    home = Coordinator.open(folder)
    from unskew.federation.coordinator import server as coordinator_server  # needs Flower

    server = coordinator_server.start_server(home, bind, say, say.form)
    if metrics:
        publish(metrics, server, say)
    tls = (
        "TLS, for admitted keys only"
        if home.tls
        else "TLS DISABLED, so that anybody on this machine can connect"
    )
    say(
        f"{home.name}  {host_port(server.bind, home.port)}  {tls}; requests and replies signed; telemetry"
        " disabled"
    )
    say(f"admitted {len(home.admitted())} of {len(home.sites)} sites")
    with stop_at_end(server):
        while True:
            server.tend()
            time.sleep(0.3)
