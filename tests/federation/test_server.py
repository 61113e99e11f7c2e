"""`unskew serve`: which runs it conducts, what it tells, and how it ends."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

import json
import sys
import time
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

from tests.ports import free_port
from unskew.errors import UsageError
from unskew.federation import journal, programs
from unskew.federation.coordinator import orders, server, superlink
from unskew.federation.coordinator import server as coordinator_server
from unskew.federation.coordinator.orders import Order, Terms
from unskew.federation.coordinator.server import MOST_STARTS, TASK, Conductors
from unskew.federation.coordinator.superlink import Refused, Task, Unavailable
from unskew.federation.front import access
from unskew.federation.protocol.signed_messages import PrivateKey
from unskew.federation.tickets import Coordinator

pytestmark = pytest.mark.flower
OURS = Task(7, 8, "0a1b2c", superlink.APP_HASH)


@dataclass
class Link:
    """A SuperLink with these tasks. order: the name that each run gives for its order."""

    tasks: list = field(default_factory=list)
    order: str = ""
    finished: list = field(default_factory=list)
    begun: int = 0
    closed: bool = False

    def close(self) -> None:
        self.closed = True

    def take(self, secret: bytes):
        task = self.tasks.pop(0) if self.tasks else None
        if isinstance(task, Exception):
            raise task
        return task

    def order_of(self, task: Task) -> str:
        self.begun += 1
        return self.order

    def finish(self, task: Task, problem: str = "") -> None:
        self.finished.append((task.run, problem))


@dataclass
class Office:
    """A coordinator's conductors whose processes run `code` instead of a conductor."""

    conductors: Conductors
    link: Link
    said: list[str]

    def tend(self, until=lambda: True, seconds: float = 20.0) -> None:
        end = time.monotonic() + seconds
        self.conductors.tend()
        while not until():
            assert time.monotonic() < end, self.said
            time.sleep(0.02)
            self.conductors.tend()


@pytest.fixture
def home(tmp_path):
    return Coordinator.make(tmp_path / "fed", "lung", "127.0.0.1:8123", ["a"])


@pytest.fixture
def office(home, monkeypatch, tmp_path):
    def opened(tasks, code: str = "", order: str | None = None) -> Office:
        said: list[str] = []
        link = Link(
            tasks,
            orders.hand_in(Order(tmp_path / "run", home.folder, {}, Terms())) if order is None else order,
        )
        monkeypatch.setattr(server, "SuperLink", lambda home: link)
        monkeypatch.setattr(programs, "BACK_OFF_S", 0.05)

        class Instead(programs.Program):
            def __init__(self, name, command, env, *more):
                super().__init__(name, [sys.executable, "-c", code], env, *more)
                self.asked = command

        monkeypatch.setattr(server, "Program", Instead)
        return Office(Conductors(home, said.append), link, said)

    return opened


def test_another_app_than_ours_is_ended_and_nothing_of_it_is_asked_for(office):
    stranger = office([replace(OURS, app_hash="f" * 64)])
    stranger.tend()
    assert stranger.link.begun == 0
    ((run, problem),) = stranger.link.finished
    assert (run, problem[:8]) == (7, "refused:")
    assert stranger.said[0].startswith(
        "E507 run 7 was refused and ended: it brings an app of its own (SHA-256 ffff"
    )


@pytest.mark.parametrize("order", ["", "0" * 32, "../../order", "x" * 32])
def test_our_app_without_an_order_of_ours_is_ended(office, order, home):
    """Somebody who has our archive, which is public, and names an order of their own."""
    (home.folder / "order.json").write_text("{}")
    (home.folder / "flower/orders").mkdir(parents=True, exist_ok=True)  # from where a name could lead out
    stranger = office([OURS], order=order)
    stranger.tend()
    assert [run for run, problem in stranger.link.finished if problem] == [7]
    assert "E507" in stranger.said[0]


def test_an_ordered_run_is_conducted_once(office, home):
    ours = office([OURS])
    ours.tend(lambda: ours.link.finished)
    assert ours.link.finished == [(7, "")]
    assert not orders.exists(home.folder, ours.link.order)
    begun, over = ours.said  # a server that was silent about its runs looked as if it did nothing
    assert begun.startswith("the run in ")
    assert begun.endswith(" begins, or goes on")
    assert over.endswith(" has ended; ending.json there says how")


def test_a_conductor_that_is_killed_is_started_again_and_at_last_given_up(office):
    killed = office([OURS], code="import os; os.kill(os.getpid(), 9)")
    killed.tend(lambda: killed.link.finished)
    assert killed.link.finished == [(7, "the run's process ended with code -9")]
    assert len([text for text in killed.said if "will be restarted" in text]) == MOST_STARTS - 1
    assert f"was killed {MOST_STARTS} times and is given up" in killed.said[-2]


def test_the_token_is_not_on_the_command_line(office):
    """Which every user of the machine can read."""
    ours = office([OURS], code="import time; time.sleep(9)")
    ours.tend()
    (run,) = ours.conductors._runs
    assert run.program.env[TASK] == "7 8 0a1b2c"
    assert not any("0a1b2c" in word for word in run.program.asked)
    ours.conductors.stop()


def test_a_superlink_that_is_away_or_refuses_stops_nothing(office):
    ours = office([Unavailable("down"), Refused("no"), OURS])
    ours.tend(lambda: ours.link.finished)
    assert ours.link.finished == [(7, "")]
    assert ours.said[0].startswith("E507 the SuperLink gives no tasks: no;")


@pytest.fixture
def two_sites(tmp_path):
    return Coordinator.make(tmp_path / "fed", "lung", f"127.0.0.1:{free_port()}", ["b", "a"])


def test_the_server_tells_whom_the_front_refused(two_sites):
    line = f'{access.MARK}{{"who": "198.51.100.7", "why": "offers no certificate", "times": 1}}'
    (two_sites.folder / "flower" / "front.log").write_text(f"{line}\n")  # of an earlier server
    said: list[str] = []
    server = coordinator_server.Server(two_sites, say=said.append)
    server.report_refusals()
    for written in (line, "listening", line[:40], line.replace('"times": 1', '"times": 7')):
        server.front.seen(written)
    server.report_refusals()
    server.report_refusals()
    who = "refused 198.51.100.7: offers no certificate"
    assert said == [who, f"{who} (7 times)"]
    noted = [json.loads(text) for text in (two_sites.folder / journal.JOURNAL_FILE).read_text().splitlines()]
    assert [(n["what"], n["who"], n["times"]) for n in noted] == [
        ("refused", "198.51.100.7", t) for t in (1, 7)
    ]
    assert not journal.verify(two_sites.folder / journal.JOURNAL_FILE, two_sites.key.public).wrong


def test_flower_tells_nobody_of_a_federation_whatever_the_shell_says(tmp_path, monkeypatch):
    for name in programs.FLOWER_SWITCHES:
        monkeypatch.setenv(name, "asked for")
    env = programs.environment(tmp_path / "flower", FLWR_LOG="1")
    assert {name: env[name] for name in programs.FLOWER_SWITCHES} == programs.FLOWER_SWITCHES
    assert (env["FLWR_HOME"], env["FLWR_LOG"]) == (str(tmp_path / "flower"), "1")


def tended(home, monkeypatch) -> coordinator_server.Server:
    """A server whose programs are not started."""
    server = coordinator_server.Server(home, say=lambda _: None)
    for program in (server.front, server.program):
        monkeypatch.setattr(program, "tend", lambda say: None)
    monkeypatch.setattr(server.conductors, "tend", lambda: None)
    monkeypatch.setattr(home.__class__, "admitted", lambda self: {})
    return server


def test_the_nodes_of_flowers_server_become_those_of_the_admitted_keys(two_sites, monkeypatch):
    """Also if somebody has removed one there, or added one."""
    server, made, now = tended(two_sites, monkeypatch), [], 0.0
    monkeypatch.setattr(coordinator_server, "time", SimpleNamespace(monotonic=lambda: now))
    keys = {site: PrivateKey.make().public for site in "ab"}
    a, b = (superlink.flower_key(key) for key in keys.values())
    nodes = {a: 1, b"a stranger's": 2, b"a revoked site's": 3}
    monkeypatch.setattr(two_sites.__class__, "admitted", lambda self: keys)
    monkeypatch.setattr(server._link, "nodes", lambda: dict(nodes))
    monkeypatch.setattr(server._link, "register", lambda site, key: made.append((site, key)))
    monkeypatch.setattr(server._link, "unregister", made.append)
    server.tend()
    assert sorted(made[:2]) == [2, 3]
    assert made[2:] == [("b", keys["b"])]
    made.clear()
    nodes = {b: 4}  # one was removed behind the server's back
    for now in (1.0, coordinator_server.RECONCILE_S + 1):  # noqa: B007  the clock reads it
        server.tend()
    assert made == [("a", keys["a"])]


def test_a_program_that_keeps_ending_by_itself_is_given_up_but_not_one_that_is_killed(two_sites, monkeypatch):
    server = coordinator_server.Server(two_sites, say=lambda _: None)
    codes = iter([-9] * 5 + [1] * 2 + [-9, 1])
    monkeypatch.setattr(server.front, "tend", lambda say: next(codes))
    monkeypatch.setattr(server.program, "tend", lambda say: None)
    monkeypatch.setattr(server.conductors, "tend", lambda: None)
    monkeypatch.setattr(two_sites.__class__, "admitted", lambda self: {})
    for _ in range(8):
        server.tend()
    with pytest.raises(UsageError, match="E507 the front does not stay up"):
        server.tend()
