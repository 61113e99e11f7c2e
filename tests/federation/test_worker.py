"""A site's two processes: what the one that holds the connection starts, and how the one with the data
answers it."""

from __future__ import annotations

import os
import socket
import threading
from types import SimpleNamespace

import pytest

from unskew.federation.protocol.signed_messages import BUDGET, SignedMessage, ask_worker
from unskew.federation.site import worker
from unskew.federation.site.connection import CONNECTED, SiteProcesses
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.tickets import Coordinator

REQUEST, ANSWER = (
    SignedMessage("asked", b"signed", b"tensors"),
    SignedMessage("answered", b"signed too", b"more tensors"),
)


@pytest.fixture
def joined(tmp_path):
    home = Coordinator.make(tmp_path / "fed", "lung", "127.0.0.1:9", ["s1"])
    return SiteFolder.make(tmp_path / "s1", home.ticket("s1"))


def test_a_site_says_every_time_that_it_is_connected_and_repeats_nothing_else(joined):
    said: list[str] = []
    site = SiteProcesses(joined, "lungs.csv", say=said.append)
    for text in ("lost", "lost", CONNECTED, "lost", CONNECTED):
        site._rarely(text)
    assert said == ["lost", CONNECTED, "lost", CONNECTED]


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
            return SignedMessage.receive(here)
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


@pytest.mark.parametrize("sent", [b"\1", BUDGET.pack(5.0) + b"\0\0", BUDGET.pack(5.0) + b"\xff" * 99])
def test_what_is_no_request_is_not_answered(tmp_path, watchdogs, sent):
    assert answered(SimpleNamespace(), tmp_path, sent) is None
    assert not watchdogs


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
        came.extend(ask_worker(place, REQUEST, 20.0) for _ in range(2))
        with pytest.raises(ConnectionError):
            ask_worker(place, REQUEST, 20.0)

    asking = threading.Thread(target=ask)
    asking.start()
    with pytest.raises(Over):
        worker.serve(SimpleNamespace(answer=answer, member=SimpleNamespace(folder=tmp_path)), place)
    asking.join(30)
    assert came == [ANSWER, ANSWER]
