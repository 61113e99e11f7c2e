"""The programs of a real federation: Flower's SuperLink at the coordinator, SuperNode and worker at a site.

Flower's public commands are used and nothing private. Its telemetry, its look for updates and its installing of
packages at run time are off; what it writes stays under the federation's or the site's folder.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unskew import disk
from unskew.deploy.identity import Public
from unskew.deploy.kept import Kept, Rarely, Say, kept
from unskew.deploy.sealed import SOCKET
from unskew.deploy.tickets import Coordinator, Joined
from unskew.errors import UnskewError, UsageError

OFF = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "PYTHONUNBUFFERED": "1",
}
BIN = Path(sys.executable).parent
LINK = "unskew"
"""How Flower's configuration names our SuperLink."""
STARTING_S = 20.0
"""So long a run is offered to a SuperLink that does not answer: it may have been started a moment ago."""
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
_STRANGER = re.compile(r"ApiError:2004\] [^\n]*?(-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----)")
"""In Flower's log: a node whose key it does not know."""
GAVE_UP = (b"SuperNode terminated", b"SSL/TLS handshake error detected")
"""In Flower's log: a SuperNode that asks no more. The second comes from a network cut during a handshake, too."""


def environment(home: Path, **more: str) -> dict[str, str]:
    """Flower writes under `home` only, and finds its own helpers beside this Python."""
    home.mkdir(parents=True, exist_ok=True)
    return {**os.environ, **OFF, "FLWR_HOME": str(home), "PATH": f"{BIN}:{os.environ.get('PATH', '')}", **more}


# --- the coordinator


@dataclass
class Server:
    """`unskew serve`: a SuperLink, and the admitted sites registered with it."""

    home: Coordinator
    bind: str = ""
    say: Say = print
    registered: dict[str, str] = field(default_factory=dict)
    _read: int = 0
    _strangers: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        local = self.home.host in ("localhost", "127.0.0.1") or self.home.host.replace(".", "").isdigit()
        self.bind = self.bind or (self.home.host if local else "0.0.0.0")
        flower = self.home.folder / "flower"
        command = [str(BIN / "flower-superlink"), "--host", self.bind, "--port", str(self.home.port)]
        command += ["--database", str(flower / "superlink.db")]
        command += self._tls() if self.home.tls else ["--insecure"]
        self.program = Kept("the SuperLink", command, environment(flower), flower / "superlink.log")
        self._read = self.program.log.stat().st_size if self.program.log.exists() else 0
        configure(self.home)
        book = self.home.folder / "flower" / "registered.json"
        self.registered = json.loads(book.read_text()) if book.exists() else {}

    def _tls(self) -> list[str]:
        found = [
            f"--ssl-ca-certfile={self.home.folder / 'ca.crt'}",
            f"--ssl-certfile={self.home.folder / 'server.crt'}",
        ]
        return [*found, f"--ssl-keyfile={self.home.folder / 'server.key'}", "--enable-supernode-auth"]

    def tend(self) -> None:
        """One look: the SuperLink is there, and every admitted site is registered."""
        if self.program.look(self.say) is not None and self.program.starts >= 3:
            raise UsageError("E507", f"Flower's SuperLink does not stay up; see {self.program.log}.")
        self._tell_strangers()
        if not self.home.tls:
            return  # Flower authenticates nodes over TLS only; requests and replies are signed all the same
        for site, key in self.home.admitted().items():
            if self.registered.get(site) != key.text:
                self._register(site, key.text)

    def _tell_strangers(self) -> None:
        """Keys that Flower turned away, once each, from its log; a half line is read next time."""
        if not self.program.log.exists():
            return
        with open(self.program.log, "rb") as log:
            log.seek(self._read)
            whole, end, _ = log.read().rpartition(b"\n")
            self._read += len(whole) + len(end)
        for key in _STRANGER.findall(whole.decode(errors="replace")):
            if key not in self._strangers:
                self._strangers.add(key)
                self.say(f"a site was turned away: its key {_fingerprint(key)} is not admitted")

    def _register(self, site: str, key: str) -> None:
        done = flwr(self.home, *_registering(self.home, site))
        text = done.stdout + done.stderr
        if done.returncode == 0 or "already" in text.lower():
            self.registered[site] = key
            disk.replace(self.home.folder / "flower" / "registered.json", json.dumps(self.registered))
            self.say(f"{site} is admitted")


def exported(home: Coordinator) -> str:
    """What our commands run of Flower's, as shell lines with paths relative to where each is run."""
    server, off = Server(home, say=lambda _: None), " ".join(f"{n}={v}" for n, v in OFF.items())
    at = home.folder / "flower"
    lines = ["# every program has this environment", f"export {off} FLWR_HOME=FOLDER/flower", ""]
    lines += [f"# at the coordinator: unskew serve {home.name}", _shell(server.program.command)]
    if home.tls:
        lines += ["# for every site that is admitted", _shell(["flwr", *_registering(home, "SITE")])]
    lines += ["", "# at the coordinator: unskew run STUDY.yaml --on " + home.name]
    lines += [f"# {at / 'app' / 'pyproject.toml'} names unskew.deploy.flower:server_app and :client_app"]
    lines += [_shell(["flwr", "run", str(at / "app"), LINK, "--format", "json"])]
    for site in home.sites:
        lines += ["", f"# at {site}: unskew site run --data PATH"]
        lines += [f"export {SOCKET}=PRIVATE_FOLDER/worker"]
        worker = ["python", "-m", "unskew.deploy.worker", "site", "PATH", "--device", "cpu"]
        where = _node(f"{home.host}:{home.port}", "PORT", Path("site") if home.tls else None)
        lines += [_shell(worker), _shell(where)]
    return "\n".join(lines)


def _shell(command: list[str]) -> str:
    return shlex.join([command[0].removeprefix(f"{BIN}/"), *command[1:]])


def _registering(home: Coordinator, site: str) -> list[str]:
    path = home.folder / "admitted" / f"{site}.pub"
    return ["supernode", "register", str(path), LINK, "--name", site]


def _node(server: str, port: str, folder: Path | None) -> list[str]:
    """A site's SuperNode. folder: the site's, where TLS is on."""
    node = [str(BIN / "flower-supernode"), "--superlink", server, "--port", port]
    if folder is None:
        return [*node, "--insecure"]
    return [*node, f"--root-certificates={folder / 'ca.crt'}", f"--auth-supernode-private-key={folder / 'site.key'}"]


def _fingerprint(pem: str) -> str:
    """Of a key as Flower writes it to its log, with its ends of line spelt out."""
    try:
        return Public.of_pem(pem.replace("\\n", "\n")).fingerprint
    except UsageError:
        return "(unreadable)"


def configure(home: Coordinator) -> None:
    """Flower's config.toml, by which its commands find our SuperLink."""
    flower = home.folder / "flower"
    flower.mkdir(parents=True, exist_ok=True)
    how = f'root-certificates = "{(home.folder / "ca.crt").resolve()}"' if home.tls else "insecure = true"
    text = f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\naddress = "{_reach(home)}:{home.port}"\n{how}\n'
    disk.replace(flower / "config.toml", text)


def _reach(home: Coordinator) -> str:
    return (
        "127.0.0.1"
        if home.host in ("localhost", "127.0.0.1") or not home.host.replace(".", "").isdigit()
        else home.host
    )


def flwr(home: Coordinator, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """One of Flower's own commands against our SuperLink."""
    env = environment(home.folder / "flower")
    return subprocess.run(
        [str(BIN / "flwr"), *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
    )


def submit(home: Coordinator, told: Mapping[str, Any]) -> str:
    """Start a run at the SuperLink; Flower's number for it. Raises UsageError (E507) if it does not take it."""
    configure(home)
    app = home.folder / "flower" / "app"
    app.mkdir(parents=True, exist_ok=True)
    disk.replace(app / "pyproject.toml", _APP.format(run=json.dumps(json.dumps(dict(told)))))
    until = time.monotonic() + STARTING_S
    while True:
        try:
            done = flwr(home, "run", str(app), LINK, "--format", "json")
            found = json.loads(done.stdout[done.stdout.index("{") :])
        except (ValueError, subprocess.TimeoutExpired) as error:
            found = {"error-message": f"unavailable ({error})"}
        if found.get("success", True) and "run-id" in found:
            return str(found["run-id"])
        text = str(found.get("error-message") or found)
        if "unavailable" not in text:
            raise UsageError("E507", f"the SuperLink did not take the run: {text[-300:]}")
        if time.monotonic() >= until:
            raise UsageError("E507", f"nothing answers at {_reach(home)}:{home.port}; is `unskew serve` running?")
        time.sleep(1)


def status(home: Coordinator, number: str) -> str:
    """Flower's word for how a run is: "running", "finished:completed", ...; "" if it does not say."""
    try:
        done = flwr(home, "list", LINK, "--run-id", number, "--format", "json")
        return str(json.loads(done.stdout[done.stdout.index("{") :])["runs"][0]["status"])
    except (ValueError, KeyError, IndexError, subprocess.TimeoutExpired):
        return ""


def follow(home: Coordinator, path: Path, number: str, since: float, say: Say) -> dict[str, Any]:
    """Repeat the run's log until it ends; how it ended. Raises UsageError (E507) if Flower lost it on the way."""
    ending, log, shown, looked = path / "ending.json", path / "server.log", 0, time.monotonic()
    if log.exists():
        shown = log.stat().st_size if log.stat().st_mtime < since else 0
    while True:
        done = json.loads(ending.read_text()) if ending.exists() and ending.stat().st_mtime >= since else None
        if log.exists() and log.stat().st_size > shown:
            with open(log) as lines:
                lines.seek(shown)
                for line in lines.read().splitlines():
                    say(line)
                shown = lines.tell()
        if done:
            return done
        if time.monotonic() - looked > 20:
            looked = time.monotonic()
            if status(home, number).startswith("finished") and not ending.exists():
                text = "the run's process ended before it could say why; what it saved is safe."
                raise UsageError(
                    "E507", f"{text} See {home.folder / 'flower' / 'superlink.log'}, then: unskew resume {path}"
                )
        time.sleep(0.3)


# --- a site


@dataclass
class SiteProcesses:
    """`unskew site run`: a worker that holds the data, and a SuperNode that brings it requests."""

    joined: Joined
    data: str
    classes: str = ""
    model: str | None = None
    device: str = "cpu"
    port: int = 0
    say: Say = print

    def __post_init__(self) -> None:
        self.say = Rarely(self.say)

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Until stopped.

        Raises UsageError (E509) for a server that will never do, UnskewError where the worker refuses its data; starting
        again mends neither.
        """
        from unskew.deploy.doctor import refused  # which loads torch, as the server's commands need not

        if why := refused(self.joined):
            where = f"{self.joined.ticket.host}:{self.joined.ticket.port}"
            raise UsageError("E509", f"{where}: {why}")
        folder, ticket = self.joined.folder, self.joined.ticket
        with tempfile.TemporaryDirectory(prefix="unskew-") as private:
            env = environment(folder / "flower", **{SOCKET: f"{private}/worker"})
            more = [
                *(["--classes", self.classes] if self.classes else []),
                *(["--model", self.model] if self.model else []),
            ]
            more += ["--device", self.device]
            command = [sys.executable, "-m", "unskew.deploy.worker", str(folder), self.data, *more]
            worker = Kept("the worker", command, env, folder / "worker.log")
            server, port = f"{ticket.host}:{ticket.port}", str(self.port or _free_port())
            node = _node(server, port, folder if ticket.authority else None)
            supernode = Kept("the SuperNode", node, env, folder / "supernode.log", GAVE_UP)
            with kept(supernode, worker):
                while not until():
                    code = worker.look(self.say)
                    if code in (2, 3):
                        raise _refused(folder / "worker.log", code)
                    if supernode.look(self.say) is not None:
                        self._explain(supernode.log)
                    time.sleep(0.5)

    def _explain(self, log: Path) -> None:
        """Flower's code 2004 stands for several things; these are the likely ones, in order."""
        if "code: 2004" in log.read_text(errors="replace")[-3000:]:
            site = self.joined.ticket.site
            self.say(f"the server does not let this site in: is {site}.pub admitted? After a crash it takes a minute.")


def _refused(log: Path, code: int) -> UnskewError:
    last = next((line for line in reversed(log.read_text().splitlines()) if line[:1] == "E"), "E507 the worker ended.")
    error = UnskewError(last[:4], last[5:])
    error.exit_code = code
    return error


def _free_port() -> int:
    import socket

    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return door.getsockname()[1]
