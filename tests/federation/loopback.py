"""A federation of real processes on this machine: Flower's SuperLink, three sites, TLS and node
authentication."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

import unskew
from tests.ports import free_port
from unskew.core.random_keys import numpy_key
from unskew.data.clients.federation import Federation
from unskew.data.clients.partition import Index
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.tickets import Coordinator, Ticket
from unskew.records import checkpoints

SITES = "abc"
STUDY = {"method": "scaffold", "rounds": 2, "epochs": 1, "model": "mlp", "seed": 0, "eval_every": 2}


@functools.cache
def samples(clients: int = len(SITES)) -> Federation:
    """The digits, dealt to three clients, or to so many."""
    digits = unskew.data.read("digits").standardised()
    return unskew.data.build(
        digits, "dirichlet:1.0", clients, numpy_key(0, "partition"), numpy_key(0, "test rows")
    )


@functools.cache
def simulated(rounds: int, clients: int) -> str:
    """The digest of the simulator's weights with the first clients only.

    Over a network updates are clipped unless that is refused, so they are here, too.
    """
    dealt = samples()
    train, test = (Index.of([rows[k] for k in range(clients)]) for rows in (dealt.train, dealt.test))
    inputs = (dealt.x, dealt.y, dealt.x_test, dealt.y_test)
    federation = Federation(dealt.name, *inputs, dealt.classes, train, test, dealt.skew)
    study = {**STUDY, "method": "scaffold+clip_median", "rounds": rounds}
    return unskew.run(**study, data=federation, lanes="1", clients=clients).digest


SLOW_MACHINE = 4
"""Factor on every wait for a process: it only delays a failure, and a busy machine takes its time."""


class Loopback:
    """A coordinator and sites that have joined and are admitted, in one folder; `up` starts their
    processes."""

    def __init__(self, root: Path, sites: Sequence[str] = SITES):
        self.root, self.running, self.sites = root, {}, sites
        address = f"127.0.0.1:{free_port()}"
        self.home = Coordinator.make(root / "federations" / "lung", "lung", address, list(sites))
        for k, site in enumerate(sites):
            self._write_data(site, k)
            joined = SiteFolder.make(
                root / f"site-{site}", Ticket.read(self.home.folder / "tickets" / f"{site}.ticket")
            )
            self.home.admit(site, joined.key.public)
        (root / "study.yaml").write_text("\n".join(f"{n}: {v}" for n, v in STUDY.items()))

    def _write_data(self, site: str, k: int) -> None:
        dealt = samples(len(self.sites))
        train, test = dealt.train[k], dealt.test[k]
        arrays = {"x_train": dealt.x[train], "y_train": dealt.y[train]}
        arrays |= {"x_test": dealt.x_test[test], "y_test": dealt.y_test[test]}
        np.savez(self.root / f"{site}.npz", **arrays, classes=np.array(dealt.classes))

    def up(self, sites: Sequence[str] = SITES) -> None:
        self.start("serve", "serve", "lung")
        log = self.root / "serve.log"
        self.until(lambda: log.read_text().count("is admitted") >= len(self.sites), 90)
        for site in sites:
            self.start_site(site)

    def start_site(self, site: str, folder: str = "", approve: str = "all") -> None:
        places = ["--data", f"{site}.npz", "--folder", f"site-{folder or site}"]
        self.start(folder or site, "site", "run", *places, "--approve", approve)

    def is_ready(self, site: str) -> bool:
        """Whether a site is connected and has loaded its data."""
        return "connected to the server" in self.log(site)

    def start_run(self, name: str, *more: str, deadline: str = "40s", wait: str = "90s") -> None:
        terms = ["--on", "lung", "--wait", wait, "--deadline", deadline, "--name", name, "--json", *more]
        self.start("run", "run", "study.yaml", *terms)

    def start(self, name: str, *arguments: str) -> None:
        """`unskew ARGUMENTS`, with its output in NAME.log; it stays under this name until it is stopped or
        killed."""
        with open(self.root / f"{name}.log", "ab") as log:
            command = [sys.executable, "-m", "unskew", *arguments]
            self.running[name] = subprocess.Popen(
                command,
                cwd=self.root,
                stdout=log,
                stderr=log,
                env=self.environment(name),
                start_new_session=True,
                preexec_fn=_interruptible,
            )

    def environment(self, name: str) -> dict[str, str] | None:
        """What the process under this name runs with; None: with what this process does."""

    def do(self, *arguments: str, code: int = 0) -> str:
        """What `unskew ARGUMENTS` prints, which must end with this exit code; on an error both its
        outputs."""
        done = subprocess.run(
            [sys.executable, "-m", "unskew", *arguments],
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr * bool(code)

    def ticket(self, name: str, **changes: object) -> str:
        """The path of c's ticket with some facts changed by the coordinator, who signs it again."""
        facts = json.loads((self.home.folder / "tickets/c.ticket").read_text())
        Ticket(**{**facts, **changes}).signed(self.home.key).write(self.root / f"{name}.ticket")
        return f"{name}.ticket"

    def log(self, name: str) -> str:
        path = self.root / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def rounds(self, name: str) -> list[str]:
        """The lines of a run's log that tell of finished rounds."""
        return [line for line in self.log(f"runs/{name}/server").splitlines() if " sites, " in line]

    def events(self, name: str) -> list[dict]:
        return [
            json.loads(line) for line in (self.root / f"runs/{name}/events.jsonl").read_text().splitlines()
        ]

    def after_round(self, name: str, t: int) -> None:
        """Wait until round t of a run is over."""
        self.until(lambda: any(f"round {t}:" in line for line in self.rounds(name)), 60)

    def saved(self, name: str) -> tuple[int, str]:
        """The round of a run's newest checkpoint and the digest of its weights."""
        tree, facts = checkpoints.read(self.root / f"runs/{name}/state.safetensors")
        return facts["t"], checkpoints.digest(tree["w"])

    def end(self, name: str, code: int = 0) -> str:
        """Wait until a command ends with this exit code; the last line it has printed."""
        assert self.running.pop(name).wait(SLOW_MACHINE * 120) == code, self.logs()
        return self.log(name).splitlines()[-1]

    def until(self, there: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + SLOW_MACHINE * seconds
        while not there():
            assert time.monotonic() < end, self.logs()
            time.sleep(0.2)

    def logs(self) -> str:
        patterns = ("*.log", "*/*.log", "runs/*/server.log", "federations/*/flower/*.log")
        paths = [path for pattern in patterns for path in self.root.glob(pattern)]
        return "\n".join(f"--- {p}\n{p.read_text()[-1500:]}" for p in paths)

    def pid(self, name: str, program: str, other: int | None = None) -> int:
        """The process of this program below one of ours. other: what to return while there is none."""
        pids = (pid for pid in below(self.running[name].pid) if program in command_line(pid))
        return next(pids) if other is None else next(pids, other)

    def kill(self, name: str) -> None:
        """-9, with everything it has started: what a machine does that loses its power."""
        process = self.running.pop(name)
        for pid in (*below(process.pid), process.pid):
            _send(pid, signal.SIGKILL)
        process.wait()

    def stop(self, *names: str) -> None:
        """End processes politely, all of them unless named, and then whatever they left behind."""
        stopping = [self.running.pop(name) for name in names or tuple(self.running)]
        left = [pid for process in stopping for pid in below(process.pid)]
        for process in stopping:
            _send(process.pid, signal.SIGTERM)
        for process in stopping:
            try:
                process.wait(25)
            except subprocess.TimeoutExpired:
                _send(process.pid, signal.SIGKILL)
        for pid in left:
            _send(pid, signal.SIGKILL)


@contextlib.contextmanager
def running(root: Path, sites: Sequence[str] = SITES) -> Iterator[Loopback]:
    """A federation whose processes, and those of these sites, are started, and stopped at the end."""
    federation = Loopback(root)
    try:
        federation.up(sites)
        yield federation
    finally:
        federation.stop()


class Cable:
    """A port of this machine that leads to another, until it is cut, or held: then it stays open and passes
    nothing on."""

    def __init__(self, to: int):
        self.to, self.whole, self.open = to, True, True
        self.flowing = threading.Event()
        self.flowing.set()
        self.lines: list[socket.socket] = []
        self.door = socket.create_server(("127.0.0.1", 0))
        self.port = self.door.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        self.whole = False
        self._drop()

    def hold(self) -> None:
        self.flowing.clear()

    def mend(self) -> None:
        self.whole = True
        self.flowing.set()

    def close(self) -> None:
        self.open = self.whole = False
        self.flowing.set()
        self._drop()
        self.door.close()

    def _drop(self) -> None:
        for line in self.lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()
        self.lines.clear()

    def _serve(self) -> None:
        while self.open:
            try:
                here, _ = self.door.accept()
                if not self.whole:
                    here.close()
                    continue
                there = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                continue
            self.lines += [here, there]
            for a, b in ((here, there), (there, here)):
                threading.Thread(target=_pump, args=(a, b, self.flowing), daemon=True).start()


def _pump(a: socket.socket, b: socket.socket, flowing: threading.Event) -> None:
    try:
        while data := a.recv(1 << 16):
            flowing.wait()
            b.sendall(data)
    except OSError:
        pass
    for line in (a, b):
        with contextlib.suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)


def below(pid: int) -> list[int]:
    """Ids of all that this process has started, and they in turn; they may lead sessions of their own."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        children.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    pids, left = [], [pid]
    while left:
        started = children.get(left.pop(), [])
        pids += started
        left += started
    return pids


def _interruptible() -> None:
    """Ctrl-C works in what is started, also where a shell has started these tests in its background, which
    ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def command_line(pid: int) -> str:
    """What a process was started as; "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
