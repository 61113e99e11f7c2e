"""Flower's one program that unskew starts, and the environment of all programs it starts.

Flower's telemetry, its update check and its installation of packages at run time are disabled, and it writes only below
the federation's or the site's folder.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from unskew.deploy.tickets import Coordinator

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


def superlink(home: Coordinator, bind: str, secret: Path) -> list[str]:
    """The command that starts the federation's SuperLink, which starts no programs itself.

    bind: the address it listens at. secret: the file that proves who may take the tasks of runs.
    """
    command = [str(BIN / "flower-superlink"), "--host", bind, "--port", str(home.port)]
    command += ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
    command += ["--database", str(home.folder / "flower" / "superlink.db")]
    if not home.tls:
        return [*command, "--insecure"]
    command += [f"--ssl-ca-certfile={home.folder / 'ca.crt'}", f"--ssl-certfile={home.folder / 'server.crt'}"]
    return [*command, f"--ssl-keyfile={home.folder / 'server.key'}", "--enable-supernode-auth"]


def local_host(home: Coordinator) -> str:
    """Where the coordinator's own commands reach the SuperLink: at the host if that is an address, else on loopback."""
    return home.host if is_address(home.host) else "127.0.0.1"


def is_address(host: str) -> bool:
    """Whether a host is an IPv4 address, not a name."""
    return host.replace(".", "").isdigit()
