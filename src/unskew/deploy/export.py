"""The programs that unskew starts, as shell lines for a security review."""

from __future__ import annotations

import shlex

from unskew.deploy import commands
from unskew.deploy.bundle import APP_HASH
from unskew.deploy.conductors import TASK
from unskew.deploy.sealed import SOCKET
from unskew.deploy.serving import Server
from unskew.deploy.tickets import Coordinator


def exported(home: Coordinator) -> str:
    """Everything that `serve`, `run --on` and `site run` start; paths are relative to where each is run."""
    server = Server(home, say=lambda _: None)
    off = " ".join(f"{name}={value}" for name, value in commands.OFF.items())
    lines = ["# every program has this environment", f"export {off} FLWR_HOME=FOLDER/flower", ""]
    lines += [f"# at the coordinator: unskew serve {home.name}", _shell(server.front.command)]
    lines += [_shell(server.program.command), ""]
    lines += [
        "# for each run that was ordered with `unskew run --on`, started by `unskew serve` and ended with the run"
    ]
    conductor = ["python", "-m", "unskew.deploy.conductor", str(home.folder), "ORDER"]
    lines += [f"export {TASK}='RUN TASK TOKEN'", _shell(conductor)]
    lines += [f"# every other run is ended before it starts; the app of ours has the SHA-256 {APP_HASH}"]
    for site in home.sites:
        lines += _at_a_site(site)
    return "\n".join(lines)


def _at_a_site(site: str) -> list[str]:
    worker = ["python", "-m", "unskew.deploy.worker", "site", "PATH", "--device", "cpu"]
    lines = ["", f"# at {site}: unskew site run --data PATH, which speaks to the server itself and starts only"]
    return [*lines, f"export {SOCKET}=PRIVATE_FOLDER/worker", _shell(worker)]


def _shell(command: list[str]) -> str:
    return shlex.join([command[0].removeprefix(f"{commands.BIN}/"), *command[1:]])
