"""A site's two processes: what the one that holds the connection starts, and how the one with the data
answers it."""

from __future__ import annotations

import os
import socket
import stat
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from unskew.errors import Paused, UnskewError, UsageError
from unskew.federation.protocol.signed_messages import (
    BUDGET,
    SOCKET,
    MessageNotStored,
    SignedMessage,
    ask_worker,
)
from unskew.federation.site import processes, worker
from unskew.federation.site.processes import SiteProcesses
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.site.terminal import CONNECTED
from unskew.federation.tickets import Coordinator

REQUEST, ANSWER = (
    SignedMessage("asked", b"signed", b"tensors"),
    SignedMessage("answered", b"signed too", b"more tensors"),
)


@pytest.fixture
def joined(tmp_path):
    home = Coordinator.make(tmp_path / "fed", "lung", "127.0.0.1:9", ["s1"], tls=False)
    return SiteFolder.make(tmp_path / "s1", home.ticket("s1"))


def test_the_worker_is_started_with_all_that_the_site_was_given(joined):
    given = {"classes": "a,b", "model": "net.py:net", "device": "cuda", "approve": "all"}
    program = SiteProcesses(joined, "lungs.csv", **given)._worker(Path("place"))
    assert program.command[1:] == [
        "-P", "-m", "unskew.federation.site.worker", str(joined.folder), "lungs.csv", "--classes", "a,b",
        "--model", "net.py:net", "--device", "cuda", "--approve", "all",
    ]  # fmt: skip
    assert (program.env[SOCKET], set(program.hopeless)) == ("place", {2, 3})
    plain = SiteProcesses(joined, "lungs.csv")._worker(Path("place"))
    assert plain.command[6:] == ["--device", "cpu", "--approve", "ask"]


def test_a_site_says_every_time_that_it_is_connected_and_repeats_nothing_else(joined):
    said: list[str] = []
    site = SiteProcesses(joined, "lungs.csv", say=said.append)
    for text in ("lost", "lost", CONNECTED, "lost", CONNECTED):
        site.say(text)
    assert said == ["lost", CONNECTED, "lost", CONNECTED]


def test_a_site_that_no_server_will_accept_starts_nothing(joined, monkeypatch):
    monkeypatch.setattr(processes, "rejection", lambda joined: "its key was revoked")
    with pytest.raises(UsageError, match=r"E503 .*: its key was revoked"):
        SiteProcesses(joined, "lungs.csv").run(until=lambda: True)


@pytest.mark.parametrize("code", [2, 3])
def test_a_worker_that_a_restart_cannot_help_ends_the_site(joined, tmp_path, code):
    (tmp_path / "log").write_text("E402 the data set is missing.\n")
    ended = SimpleNamespace(tend=lambda say: code, log=tmp_path / "log")
    with pytest.raises(UnskewError, match="E402 the data set is missing") as told:
        SiteProcesses(joined, "lungs.csv")._tend(ended)
    assert told.value.exit_code == code
    SiteProcesses(joined, "lungs.csv")._tend(SimpleNamespace(tend=lambda say: worker.OVERDUE))


def started(monkeypatch, folder: Path, *options: str) -> tuple[SimpleNamespace, list]:
    """What `main` began to serve with these options, and what it loaded."""
    served, loaded = [], []
    data = SimpleNamespace(y=[0, 1, 1], y_test=[0])
    monkeypatch.setattr(worker, "configure_malloc", lambda: None)  # it is for a process of its own
    monkeypatch.setattr(worker, "load", lambda data_, classes: loaded.append((data_, classes)) or data)
    monkeypatch.setattr(worker, "Site", lambda *given: SimpleNamespace(given=given))
    monkeypatch.setattr(worker, "serve", lambda site, path: served.append((site, path)))
    monkeypatch.setattr(sys, "argv", ["worker", str(folder), "lungs.csv", *options])
    monkeypatch.setenv(SOCKET, "place")
    worker.main()
    ((site, path),) = served
    assert path == Path("place")
    return site, loaded


def test_what_the_worker_was_started_with_reaches_the_site(joined, monkeypatch, capsys):
    before = os.umask(0o022)
    try:
        site, loaded = started(
            monkeypatch, joined.folder, "--classes", "a, b,", "--model", "net.py", "--device", "cuda"
        )
        (joined.folder / "leaves.txt").write_text("")
        assert stat.S_IMODE((joined.folder / "leaves.txt").stat().st_mode) == 0o600
    finally:
        os.umask(before)
    assert loaded == [("lungs.csv", ["a", "b"])]
    member, data, model, device, _, approve = site.given
    assert (member.name, member.folder, model, device, approve) == (
        "s1",
        joined.folder,
        "net.py",
        "cuda",
        "ask",
    )
    assert member.coordinator.text == joined.ticket.coordinator
    assert len(data().y) == 3
    assert "3 training samples, 1 test samples, ready" in capsys.readouterr().out


class Watchdog:
    """A timer that never goes off, and says how it was set."""

    set_: list[Watchdog] = []

    def __init__(self, seconds, does, given):
        self.seconds, self.does, self.given, self.over = seconds, does, given, False
        Watchdog.set_.append(self)

    def start(self):
        self.running = True

    def cancel(self):
        self.over = True


@pytest.fixture
def watchdogs(monkeypatch):
    monkeypatch.setattr(worker.threading, "Timer", Watchdog)
    monkeypatch.setattr(Watchdog, "set_", [])
    return Watchdog.set_


def answered(site, tmp_path, *sent: bytes, budget_s: float = 30.0) -> SignedMessage | None:
    """What comes back through the socket after these bytes, by default a whole request."""
    here, there = socket.socketpair()
    site.member = SimpleNamespace(folder=tmp_path)
    with here, there:
        if sent:
            here.sendall(b"".join(sent))
        else:
            here.sendall(BUDGET.pack(budget_s))
            REQUEST.send(here)
        here.shutdown(socket.SHUT_WR)
        worker._answer_one(site, there)
        there.shutdown(socket.SHUT_WR)
        try:
            return SignedMessage.receive(here, tmp_path)
        except ConnectionError:
            return None


@pytest.mark.parametrize(("budget_s", "seconds"), [(30.0, 30.0), (0.001, 1.0)])
def test_an_answer_comes_within_its_time_or_ends_the_worker(tmp_path, watchdogs, budget_s, seconds):
    asked = []
    site = SimpleNamespace(answer=lambda request: asked.append(request) or ANSWER)
    assert answered(site, tmp_path, budget_s=budget_s) == ANSWER
    assert asked == [REQUEST]
    (watchdog,) = watchdogs
    assert (watchdog.seconds, watchdog.does, watchdog.given) == (seconds, os._exit, (worker.OVERDUE,))
    assert watchdog.running
    assert watchdog.daemon
    assert watchdog.over


def test_an_answer_that_fails_leaves_no_watchdog_behind(tmp_path, watchdogs):
    def fails(request):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        answered(SimpleNamespace(answer=fails), tmp_path)
    assert watchdogs[0].over


@pytest.mark.parametrize("sent", [b"\1", BUDGET.pack(5.0) + b"\0\0", BUDGET.pack(5.0) + b"\xff" * 99])
def test_what_is_no_request_is_not_answered(tmp_path, watchdogs, sent):
    assert answered(SimpleNamespace(), tmp_path, sent) is None
    assert not watchdogs


def test_a_request_that_the_disk_has_no_room_for_is_refused(tmp_path, watchdogs, monkeypatch):
    full = MessageNotStored(REQUEST.digest, Paused("E203", "the disk is full."))

    def receive(line, folder):
        raise full

    whole, refused = SignedMessage.receive, []
    site = SimpleNamespace(refusal=lambda digest, error: refused.append((digest, error)) or ANSWER)
    calls = iter([receive, whole])
    monkeypatch.setattr(
        SignedMessage, "receive", staticmethod(lambda line, folder: next(calls)(line, folder))
    )
    assert answered(site, tmp_path) == ANSWER
    assert refused == [(REQUEST.digest, full)]


def test_whoever_asks_is_answered_one_after_the_other_also_where_a_worker_was_killed(tmp_path):
    """The socket of the one before is still there."""

    class Over(Exception):
        pass

    place, answers, came = tmp_path / "worker", iter([ANSWER, ANSWER]), []
    with socket.socket(socket.AF_UNIX) as before:
        before.bind(str(place))

    def answer(request):
        for one in answers:
            return one
        raise Over

    def ask():
        came.extend(ask_worker(place, tmp_path, REQUEST, 20.0) for _ in range(2))
        with pytest.raises(ConnectionError):
            ask_worker(place, tmp_path, REQUEST, 20.0)

    asking = threading.Thread(target=ask)
    asking.start()
    with pytest.raises(Over):
        worker.serve(SimpleNamespace(answer=answer, member=SimpleNamespace(folder=tmp_path)), place)
    asking.join(30)
    assert came == [ANSWER, ANSWER]
