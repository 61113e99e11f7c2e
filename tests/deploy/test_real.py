"""Real processes on loopback: Flower's SuperLink and three sites, TLS and node authentication, by our own commands."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

import unskew
from tests.deploy import fake  # noqa: F401  skips where cryptography is missing
from unskew.core.keys import numpy_key
from unskew.deploy.processes import _free_port

pytestmark = pytest.mark.slow
SITES = "abc"
STUDY = {"method": "scaffold", "rounds": 4, "epochs": 1, "model": "mlp", "seed": 0, "eval_every": 4}


def command(*arguments: str, cwd: Path) -> list[str]:
    return [sys.executable, "-m", "unskew", *arguments]


class Federation:
    """A coordinator and three sites in one folder; every process is stopped by its id."""

    def __init__(self, root: Path):
        self.root, self.running, self.deal = root, {}, _deal()
        self.do("federation", "init", "lung", "--host", f"127.0.0.1:{_free_port()}", "--sites", ",".join(SITES))
        for k, site in enumerate(SITES):
            d = self.deal
            np.savez(
                root / f"{site}.npz",
                x_train=d.x[d.train[k]],
                y_train=d.y[d.train[k]],
                x_test=d.x_test[d.test[k]],
                y_test=d.y_test[d.test[k]],
                classes=np.array(d.classes),
            )
            self.do("join", f"federations/lung/tickets/{site}.ticket", "--folder", f"site-{site}")
            self.do("federation", "admit", "lung", f"site-{site}/{site}.pub")
        (root / "study.yaml").write_text("\n".join(f"{n}: {v}" for n, v in STUDY.items()))

    def do(self, *arguments: str, timeout: float = 300, code: int = 0) -> str:
        """What a command prints. code: how it must end; what it says then is on both its outputs together."""
        done = subprocess.run(
            command(*arguments, cwd=self.root), cwd=self.root, capture_output=True, text=True, timeout=timeout
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr * bool(code)

    def start(self, name: str, *arguments: str) -> subprocess.Popen:
        log = open(self.root / f"{name}.log", "ab")  # noqa: SIM115
        self.running[name] = subprocess.Popen(
            command(*arguments, cwd=self.root), cwd=self.root, stdout=log, stderr=log, start_new_session=True
        )
        return self.running[name]

    def up(self) -> None:
        self.start("serve", "serve", "lung")
        self.until(lambda: (self.root / "serve.log").read_text().count("is admitted") >= 3, 90)
        for site in SITES:
            self.site(site)

    def site(self, name: str) -> None:
        self.start(name, "site", "run", "--data", f"{name}.npz", "--folder", f"site-{name}")

    def ticket(self, site: str, name: str, **other: object) -> str:
        """The path of a site's ticket with some facts changed."""
        facts = json.loads((self.root / f"federations/lung/tickets/{site}.ticket").read_text())
        (self.root / f"{name}.ticket").write_text(json.dumps(facts | other))
        return f"{name}.ticket"

    def run(self, *more: str) -> subprocess.Popen:
        terms = [
            "--wait",
            "90s",
            "--name",
            "r",
            "--json",
            *more,
            *(() if "--deadline" in more else ("--deadline", "40s")),
        ]
        return self.start("run", "run", "study.yaml", "--on", "lung", *terms)

    def round(self, t: int) -> None:
        log = self.root / "runs/r/server.log"
        self.until(lambda: log.exists() and f"round {t}:" in log.read_text(), 240)

    def until(self, there, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not there():
            assert time.monotonic() < end, self.logs()
            time.sleep(0.3)

    def logs(self) -> str:
        found = [*self.root.glob("*.log"), *self.root.glob("*/*.log"), *self.root.glob("runs/*/server.log")]
        return "\n".join(f"--- {p}\n{p.read_text()[-1500:]}" for p in found)

    def kill(self, name: str) -> None:
        """-9, the whole of it: what a machine does that loses its power."""
        process = self.running.pop(name)
        for pid in (*_below(process.pid), process.pid):
            _send(pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for process in self.running.values():
            _send(process.pid, signal.SIGTERM)
        for process in self.running.values():
            below = _below(process.pid)
            try:
                process.wait(25)
            except subprocess.TimeoutExpired:
                _send(process.pid, signal.SIGKILL)
            for pid in below:
                _send(pid, signal.SIGKILL)

    def result(self) -> dict:
        process = self.running.pop("run")
        assert process.wait(300) == 0, self.logs()
        return json.loads((self.root / "run.log").read_text().splitlines()[-1])


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _below(pid: int) -> list[int]:
    """Ids of all that this process has started, and they in turn; they may lead sessions of their own."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        children.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    found, left = [], [pid]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def _deal():
    digits = unskew.data.load("digits").standardised()
    return unskew.data.build(digits, "dirichlet:1.0", 3, numpy_key(0, "partition"), numpy_key(0, "test rows"))


@pytest.fixture
def federation(tmp_path):
    made = Federation(tmp_path)
    try:
        made.up()
        yield made
    finally:
        made.stop()


def simulated() -> str:
    """Over a network updates are clipped unless that is refused, so here they are, too."""
    return unskew.run(**{**STUDY, "method": "scaffold+clip_median"}, data=_deal(), lanes="1", clients=3).digest


def test_three_sites_end_with_the_simulators_weights(federation):
    """And a fourth, with a true ticket and a key nobody admitted, is not let in and is told why."""
    federation.do("join", "federations/lung/tickets/c.ticket", "--folder", "site-stranger")
    federation.start("stranger", "site", "run", "--data", "c.npz", "--folder", "site-stranger")
    federation.run("--min-sites", "3")
    federation.round(1)
    assert "E110" in federation.do("resume", "runs/r", code=2)  # it is going on: its journal and ending stay its own
    for name, authority in (("other", _another_authority(federation.root)), ("open", "")):
        began = time.monotonic()
        ticket = federation.ticket("c", name, authority=authority)
        federation.do("join", ticket, "--folder", f"site-{name}")
        assert "E509" in federation.do("site", "run", "--data", "c.npz", "--folder", f"site-{name}", code=2)
        assert time.monotonic() - began < 30  # of which most is two starts of Python beside a federation at work
    told = federation.result()
    assert "is c.pub admitted?" in (federation.root / "stranger.log").read_text()
    assert "turned away" in (federation.root / "serve.log").read_text()
    assert told["sha256"] == simulated()
    assert (federation.root / "runs/r/report.html").exists()
    assert "signed by" in federation.do("federation", "audit", "lung", "runs/r")
    watched = federation.do("watch", "runs/r")
    assert "round    4/4" in watched
    assert "3/3 answered" in watched
    checked = federation.do("site", "check", "--data", "a.npz", "--folder", "site-a")
    assert "FAIL" not in checked
    assert "signed by the federation's authority" in checked


def test_a_site_that_dies_is_left_out_after_the_deadline_and_taken_back(federation):
    federation.run("--min-sites", "2")
    federation.round(1)
    federation.kill("c")
    told = federation.result()
    events = [json.loads(line) for line in (federation.root / "runs/r/events.jsonl").read_text().splitlines()]
    answered = [e["answered"] for e in events if e["code"] == "round"]
    assert answered[0] == [0, 1, 2]
    assert answered[-1] == [0, 1]
    assert any(e["code"] in ("E311", "E312") and e["text"].startswith("c ") for e in events)
    assert told["scores"]["global"] > 0.3


def test_a_server_that_dies_is_resumed_to_the_simulators_weights(federation):
    federation.run("--min-sites", "3")
    federation.round(2)
    for name in ("run", "serve"):
        federation.kill(name)
    federation.start("serve", "serve", "lung")
    time.sleep(5)
    told = json.loads(federation.do("resume", "runs/r", "--json", timeout=400).splitlines()[-1])
    assert told["sha256"] == simulated()
    assert "signed by" in federation.do("federation", "audit", "lung", "runs/r")


def test_a_superlink_that_dies_alone_is_started_again_and_the_run_resumed(federation):
    federation.run("--min-sites", "3")
    federation.round(1)
    link = next(pid for pid in _below(federation.running["serve"].pid) if "flower-superlink" in _command_line(pid))
    os.kill(link, signal.SIGKILL)
    assert federation.running.pop("run").wait(200) == 2
    seen = (federation.root / "run.log").read_text()
    assert "unskew resume" in seen
    assert "is started again" in (federation.root / "serve.log").read_text()
    told = json.loads(federation.do("resume", "runs/r", "--json", timeout=400).splitlines()[-1])
    assert told["sha256"] == simulated()


def test_everything_dies_at_once_and_the_run_is_resumed_to_the_simulators_weights(federation):
    federation.run("--min-sites", "3")
    federation.round(2)
    for name in ("run", "serve", *SITES):
        federation.kill(name)
    federation.up()
    told = json.loads(federation.do("resume", "runs/r", "--json", timeout=400).splitlines()[-1])
    assert told["sha256"] == simulated()
    assert "signed by" in federation.do("federation", "audit", "lung", "runs/r")


def test_a_hung_site_and_one_whose_network_is_cut_are_left_out_named_and_taken_back(federation):
    cable = Cable(json.loads((federation.root / "federations/lung/tickets/c.ticket").read_text())["port"])
    first = federation.running.pop("c")
    first.terminate()
    first.wait(30)
    facts = json.loads((federation.root / "site-c/ticket.json").read_text())
    (federation.root / "site-c/ticket.json").write_text(json.dumps(facts | {"port": cable.port}))
    federation.site("c")
    federation.run("--min-sites", "1", "--deadline", "25s", "--rounds", "200")
    log = federation.root / "runs/r/server.log"
    federation.until(lambda: log.exists() and ": 3/3 sites" in log.read_text(), 240)

    worker = next(p for p in _below(federation.running["b"].pid) if "unskew.deploy.worker" in _command_line(p))
    os.kill(worker, signal.SIGSTOP)
    cable.cut()
    federation.until(lambda: ": 1/" in log.read_text(), 120)
    os.kill(worker, signal.SIGCONT)
    cable.mend()
    before = log.read_text().count(": 3/3 sites")
    federation.until(lambda: log.read_text().count(": 3/3 sites") > before, 300)
    events = [json.loads(line) for line in (federation.root / "runs/r/events.jsonl").read_text().splitlines()]
    for site in "bc":
        assert any(e["code"] in ("E311", "E312") and e["text"].startswith(f"{site} ") for e in events), (site, events)
    cable.close()


class Cable:
    """A port of this machine that leads to another, until it is cut."""

    def __init__(self, to: int):
        self.to, self.whole, self.open = to, True, True
        self.lines: list[socket.socket] = []
        self.door = socket.create_server(("127.0.0.1", 0))
        self.port = self.door.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        self.whole = False
        self._drop()

    def mend(self) -> None:
        self.whole = True

    def close(self) -> None:
        self.open = self.whole = False
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
                threading.Thread(target=_pump, args=(a, b), daemon=True).start()


def _pump(a: socket.socket, b: socket.socket) -> None:
    try:
        while data := a.recv(1 << 16):
            b.sendall(data)
    except OSError:
        pass
    for line in (a, b):
        with contextlib.suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)


def _another_authority(root: Path) -> str:
    """The certificate of a federation that has nothing to do with this one."""
    from unskew.deploy.tickets import Coordinator, Ticket

    Coordinator.make(root / "elsewhere", "elsewhere", "127.0.0.1:9", ["c"], True)
    return Ticket.read(root / "elsewhere" / "tickets" / "c.ticket").authority


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
