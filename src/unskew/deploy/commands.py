"""Flower's public commands, as unskew runs them. This is the only file that knows their names and options.

Flower's telemetry, its update check and its installation of packages at run time are disabled, and it writes only below
the federation's or the site's folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from unskew import disk
from unskew.deploy.tickets import Coordinator

OFF = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "PYTHONUNBUFFERED": "1",
}
BIN = Path(sys.executable).parent
LINK = "unskew"
"""The name of our SuperLink in Flower's configuration."""


def environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of Flower's programs: they write only below `home` and find their helpers beside this Python."""
    home.mkdir(parents=True, exist_ok=True)
    return {**os.environ, **OFF, "FLWR_HOME": str(home), "PATH": f"{BIN}:{os.environ.get('PATH', '')}", **more}


def superlink(home: Coordinator, bind: str) -> list[str]:
    """The command that starts the federation's SuperLink. bind: the address it listens at."""
    command = [str(BIN / "flower-superlink"), "--host", bind, "--port", str(home.port)]
    command += ["--database", str(home.folder / "flower" / "superlink.db")]
    if not home.tls:
        return [*command, "--insecure"]
    command += [f"--ssl-ca-certfile={home.folder / 'ca.crt'}", f"--ssl-certfile={home.folder / 'server.crt'}"]
    return [*command, f"--ssl-keyfile={home.folder / 'server.key'}", "--enable-supernode-auth"]


def register(home: Coordinator, site: str) -> list[str]:
    """The arguments of `flwr` that register an admitted site's key with the SuperLink."""
    return ["supernode", "register", str(home.folder / "admitted" / f"{site}.pub"), LINK, "--name", site]


def supernode(address: str, port: str, folder: Path | None) -> list[str]:
    """The command that starts a site's SuperNode.

    address: HOST:PORT of the server; port: the SuperNode's local one; folder: the site's, None where TLS is disabled.
    """
    command = [str(BIN / "flower-supernode"), "--superlink", address, "--port", port]
    if folder is None:
        return [*command, "--insecure"]
    key = f"--auth-supernode-private-key={folder / 'site.key'}"
    return [*command, f"--root-certificates={folder / 'ca.crt'}", key]


def flwr(home: Coordinator, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """Run one of Flower's own commands against our SuperLink. Raises subprocess.TimeoutExpired."""
    return subprocess.run(
        [str(BIN / "flwr"), *arguments],
        env=environment(home.folder / "flower"),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
    )


def configure(home: Coordinator) -> None:
    """Write Flower's config.toml, in which its commands look up our SuperLink."""
    flower = home.folder / "flower"
    flower.mkdir(parents=True, exist_ok=True)
    tls = f'root-certificates = "{(home.folder / "ca.crt").resolve()}"' if home.tls else "insecure = true"
    address = f"{local_host(home)}:{home.port}"
    text = f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\naddress = "{address}"\n{tls}\n'
    disk.replace(flower / "config.toml", text)


def local_host(home: Coordinator) -> str:
    """Where the coordinator's own commands reach the SuperLink: at the host if that is an address, else on loopback."""
    return home.host if is_address(home.host) else "127.0.0.1"


def is_address(host: str) -> bool:
    """Whether a host is an IPv4 address, not a name."""
    return host.replace(".", "").isdigit()
