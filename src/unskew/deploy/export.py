"""The commands of Flower's that unskew runs, as shell lines for a security review."""

from __future__ import annotations

import shlex
from pathlib import Path

from unskew.deploy import commands
from unskew.deploy.sealed import SOCKET
from unskew.deploy.serving import Server
from unskew.deploy.tickets import Coordinator


def exported(home: Coordinator) -> str:
    """Everything that `serve`, `run --on` and `site run` start; paths are relative to where each is run."""
    server = Server(home, say=lambda _: None)
    off = " ".join(f"{name}={value}" for name, value in commands.OFF.items())
    app = home.folder / "flower" / "app"
    lines = ["# every program has this environment", f"export {off} FLWR_HOME=FOLDER/flower", ""]
    lines += [f"# at the coordinator: unskew serve {home.name}", _shell(server.program.command)]
    if home.tls:
        lines += ["# for every site that is admitted", _shell(["flwr", *commands.register(home, "SITE")])]
    lines += ["", f"# at the coordinator: unskew run STUDY.yaml --on {home.name}"]
    lines += [f"# {app / 'pyproject.toml'} names unskew.deploy.flower:server_app and :client_app"]
    lines += [_shell(["flwr", "run", str(app), commands.LINK, "--format", "json"])]
    for site in home.sites:
        lines += _at_a_site(home, site)
    return "\n".join(lines)


def _at_a_site(home: Coordinator, site: str) -> list[str]:
    node = commands.supernode(f"{home.host}:{home.port}", "PORT", Path("site") if home.tls else None)
    worker = ["python", "-m", "unskew.deploy.worker", "site", "PATH", "--device", "cpu"]
    lines = ["", f"# at {site}: unskew site run --data PATH", f"export {SOCKET}=PRIVATE_FOLDER/worker"]
    return [*lines, _shell(worker), _shell(node)]


def _shell(command: list[str]) -> str:
    return shlex.join([command[0].removeprefix(f"{commands.BIN}/"), *command[1:]])
