"""Flower's one program that unskew starts, and the environment of all programs it starts.

Flower's telemetry, its update check and its installation of packages at run time are disabled, and it writes only below
the federation's or the site's folder.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from unskew import disk
from unskew.deploy.addresses import LOOPBACK, check_free, free_port
from unskew.deploy.tickets import Coordinator
from unskew.errors import UsageError

OFF = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "PYTHONUNBUFFERED": "1",
}
BIN = Path(sys.executable).parent


def environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of Flower's programs: they write only below `home` and find their helpers beside this Python."""
    home.mkdir(parents=True, exist_ok=True)
    return {**os.environ, **OFF, "FLWR_HOME": str(home), "PATH": f"{BIN}:{os.environ.get('PATH', '')}", **more}


def superlink(home: Coordinator, secret: Path) -> list[str]:
    """The command that starts the federation's SuperLink, on loopback; it starts no programs itself.

    secret: the file that proves who may take the tasks of runs.
    """
    command = [sys.executable, "-P", "-m", "unskew.deploy.lean", "flower-superlink"]
    command += ["--host", LOOPBACK, "--port", str(inner_port(home))]
    command += ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
    command += ["--database", str(home.folder / "flower" / "superlink.db")]
    if not home.tls:
        return [*command, "--insecure"]
    command += [f"--ssl-ca-certfile={home.folder / 'ca.crt'}", f"--ssl-certfile={home.folder / 'server.crt'}"]
    return [*command, f"--ssl-keyfile={home.folder / 'server.key'}", "--enable-supernode-auth"]


def front(home: Coordinator, bind: str) -> list[str]:
    """The command that starts the front. bind: the address that sites reach."""
    return [sys.executable, "-P", "-m", "unskew.deploy.front", str(home.folder), bind, str(inner_port(home))]


def inner_port(home: Coordinator) -> int:
    """The port of loopback at which the SuperLink listens. Raises UsageError (E507) before the first `unskew serve`."""
    path = _inner(home)
    if not path.exists():
        raise UsageError("E507", f"the server of {home.name} has never run; start it with: unskew serve {home.name}")
    return int(path.read_text())


def choose_inner_port(home: Coordinator, again: bool = False) -> None:
    """Choose the SuperLink's port on loopback, if there is none yet. again: also if somebody else uses it meanwhile.

    It is kept as long as it is free, because a run's process that outlives the SuperLink comes back to it.
    """
    path = _inner(home)
    if path.exists() and not (again and _is_taken(inner_port(home))):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    port = next(port for port in iter(free_port, None) if port != home.port)  # where the front will listen
    disk.replace(path, str(port))


def _inner(home: Coordinator) -> Path:
    return home.folder / "flower" / "port"


def _is_taken(port: int) -> bool:
    try:
        check_free(LOOPBACK, port)
    except UsageError:
        return True
    return False
