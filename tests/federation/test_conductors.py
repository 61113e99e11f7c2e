"""Which runs a server conducts, and what it does with all others: nothing that came over the network is
run."""

from __future__ import annotations

import hashlib
import importlib
import io
import os
import signal
import sys
import time
import tomllib
import zipfile
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from unskew.federation import programs
from unskew.federation.coordinator import conductor, orders, server, superlink
from unskew.federation.coordinator.orders import Order, Terms
from unskew.federation.coordinator.server import MOST_STARTS, TASK, Conductors
from unskew.federation.coordinator.superlink import Refused, Task, Unavailable
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


def test_the_archive_of_our_app_holds_no_code_and_is_the_same_each_time():
    with zipfile.ZipFile(io.BytesIO(superlink.APP)) as archive:
        assert archive.namelist() == ["pyproject.toml"]
        (file,) = archive.infolist()
        app = tomllib.loads(archive.read(file).decode())["tool"]["flwr"]["app"]
    # neither a time nor a library's way of compressing: `run --on` and `serve` are two processes, perhaps of
    # two days
    assert (file.date_time, file.compress_type) == ((1980, 1, 1, 0, 0, 0), zipfile.ZIP_STORED)
    assert hashlib.sha256(superlink.APP).hexdigest() == superlink.APP_HASH
    assert app["config"] == {superlink.ORDER: ""}
    for name in app["components"].values():
        module, _, function = name.partition(":")
        assert callable(getattr(importlib.import_module(module), function))
    assert app["components"] == {
        "serverapp": "unskew.federation.coordinator.conductor:main",
        "clientapp": "unskew.federation.site.worker:main",
    }


def test_another_app_than_ours_is_ended_and_nothing_of_it_is_asked_for(office):
    """N0: whoever reached the port ran Python as the coordinator's user."""
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
    assert (killed.conductors.restarts, killed.conductors.active) == (MOST_STARTS - 1, [])


def test_a_conductor_that_fails_is_not_started_again(office):
    failing = office([OURS], code="raise SystemExit(3)")
    failing.tend(lambda: failing.link.finished)
    assert failing.link.finished == [(7, "the run's process ended with code 3")]


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


def test_the_secret_that_takes_tasks_is_the_coordinators_alone(office, home):
    office([])
    path = home.folder / "flower" / "tasks.key"
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.read_bytes()
    office([])
    assert path.read_bytes() == before
    assert len(before) == 32


def test_a_process_whose_token_is_refused_ends_once_and_is_not_taken_for_killed(tmp_path, monkeypatch):
    """N11: a machine whose clock had jumped began the run's process again and again, each holding the run's
    folder."""
    home = Coordinator.make(tmp_path / "fed", "lung", "127.0.0.1:8123", ["a"])
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ends: list[str] = []

    def conducting(*_) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        finally:
            os.kill(os.getpid(), signal.SIGINT)  # of another call, while the first is dealt with
            ends.append("written down")

    for name in ("Mailbox", "HeartbeatSender", "FlowerChannel"):
        monkeypatch.setattr(conductor, name, lambda *_, **__: SimpleNamespace(start=lambda: None))
    monkeypatch.setattr(superlink, "runtime_client", lambda *_, **__: None)
    monkeypatch.setattr(orders, "read_current_order", lambda *_: None)
    monkeypatch.setattr(conductor, "conduct_order", conducting)
    monkeypatch.setattr(sys, "argv", ["conductor", str(home.folder), "order"])
    monkeypatch.setenv(TASK, "1 2 token")
    try:
        with pytest.raises(SystemExit) as end:
            conductor.main()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert (end.value.code, ends) == (1, ["written down"])


def test_tasks_are_asked_for_often_only_while_an_order_waits(office, home, tmp_path, monkeypatch):
    """Every question costs the SuperLink as much as a message."""
    clock, asked = [50.0], []
    monkeypatch.setattr(server.time, "monotonic", lambda: clock[0])
    idle = office([], order="")
    idle.link.take = lambda secret: asked.append(clock[0])
    for _ in range(100):
        idle.conductors.tend()
        clock[0] += 0.1
    assert len(asked) == pytest.approx(10 / server.TAKE_S, abs=1)
    orders.hand_in(Order(tmp_path / "run", home.folder, {}, Terms()))
    for _ in range(3):
        idle.conductors.tend()
    assert asked[-3:] == [clock[0]] * 3


def test_a_superlink_that_refuses_to_give_tasks_is_named_once_and_so_is_its_recovery(office, home):
    """The same line came three times a second for as long as it answered 500."""
    ill = office([*[Refused("Server error '500'")] * 5, None, Refused("again")])
    for _ in range(7):
        ill.conductors.tend()
    assert ill.said == [
        "E507 the SuperLink gives no tasks: Server error '500'; it is asked again until it does.",
        "the SuperLink gives tasks again",
        "E507 the SuperLink gives no tasks: again; it is asked again until it does.",
    ]
