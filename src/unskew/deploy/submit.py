"""A run at the SuperLink, from the outside: hand it in, follow its log, learn how it ended."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from unskew import disk
from unskew.deploy import commands
from unskew.deploy.orders import Order
from unskew.deploy.supervise import Say
from unskew.deploy.tickets import Coordinator
from unskew.errors import UsageError

STARTING_S = 20.0
"""How long a run is offered to a SuperLink that does not answer: it may have been started a moment ago."""
STATUS_S = 20.0
"""How often Flower is asked whether the run is still alive."""
ENDING = "ending.json"
_APP = """[project]
name = "unskew-run"
version = "0.1.0"
description = "A study of unskew"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "unskew"

[tool.flwr.app.components]
serverapp = "unskew.deploy.flower:server_app"
clientapp = "unskew.deploy.flower:client_app"

[tool.flwr.app.config]
run = {run}
"""


def submit(home: Coordinator, order: Order) -> str:
    """Start a run at the SuperLink. Returns Flower's number for it. Raises UsageError (E507) if it is not accepted."""
    commands.configure(home)
    app = home.folder / "flower" / "app"
    app.mkdir(parents=True, exist_ok=True)
    disk.replace(app / "pyproject.toml", _APP.format(run=json.dumps(json.dumps(order.as_json()))))
    until = time.monotonic() + STARTING_S
    while True:
        answer = _offered(home, app)
        if answer.get("success", True) and "run-id" in answer:
            return str(answer["run-id"])
        problem = str(answer.get("error-message") or answer)
        if "unavailable" not in problem:
            raise UsageError("E507", f"the SuperLink did not accept the run: {problem[-300:]}")
        if time.monotonic() >= until:
            where = f"{commands.local_host(home)}:{home.port}"
            raise UsageError("E507", f"nothing answers at {where}; is `unskew serve` running?")
        time.sleep(1)


def _offered(home: Coordinator, app: Path) -> dict[str, Any]:
    """What Flower answers to a run: its number under "run-id", or an "error-message"."""
    try:
        return _json(commands.flwr(home, "run", str(app), commands.LINK, "--format", "json"))
    except (ValueError, subprocess.TimeoutExpired) as error:
        return {"error-message": f"unavailable ({error})"}


def status(home: Coordinator, number: str) -> str:
    """Flower's word for the state of a run: "running", "finished:completed", ...; "" if it does not say."""
    try:
        answer = _json(commands.flwr(home, "list", commands.LINK, "--run-id", number, "--format", "json"))
        return str(answer["runs"][0]["status"])
    except (ValueError, KeyError, IndexError, subprocess.TimeoutExpired):
        return ""


def stop(home: Coordinator, number: str) -> None:
    """Ask Flower to end a run."""
    commands.flwr(home, "stop", number, commands.LINK)


def follow(home: Coordinator, path: Path, number: str, since: float, say: Say) -> dict[str, Any]:
    """Repeat a run's log until it ends. Returns its ending.json. since: when the run was handed in, as time.time().

    Raises UsageError (E507) if Flower has lost the run on the way.
    """
    log, asked = _Log(path / "server.log", since), time.monotonic()
    while True:
        ending = _ending(path, since)
        for line in log.fresh():
            say(line)
        if ending:
            return ending
        if time.monotonic() - asked > STATUS_S:
            asked = time.monotonic()
            if status(home, number).startswith("finished") and not (path / ENDING).exists():
                text = "the run's process ended before it could say why; what it saved is safe."
                log_path = home.folder / "flower" / "superlink.log"
                raise UsageError("E507", f"{text} See {log_path}, then: unskew resume {path}")
        time.sleep(0.3)


class _Log:
    """Lines of a file as they are added. Those of an earlier process, which wrote before `since`, are skipped."""

    def __init__(self, path: Path, since: float):
        old = path.exists() and path.stat().st_mtime < since
        self.path, self.read = path, path.stat().st_size if old else 0

    def fresh(self) -> list[str]:
        if not self.path.exists() or self.path.stat().st_size <= self.read:
            return []
        with open(self.path) as file:
            file.seek(self.read)
            lines = file.read().splitlines()
            self.read = file.tell()
        return lines


def _ending(path: Path, since: float) -> dict[str, Any] | None:
    """How the run ended, if it has since then."""
    ending = path / ENDING
    return json.loads(ending.read_text()) if ending.exists() and ending.stat().st_mtime >= since else None


def _json(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON object in a command's output, after whatever else it prints. Raises ValueError if there is none."""
    return json.loads(done.stdout[done.stdout.index("{") :])
