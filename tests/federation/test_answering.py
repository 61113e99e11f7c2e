"""A site's connection: what it does when the network, the server or its own worker fails."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass, field

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

from flwr.app import Message

from tests.federation import fake  # skips where cryptography is missing
from unskew.federation.protocol.flower_messages import pack_message
from unskew.federation.protocol.signed_messages import BUDGET, SignedMessage, ask_worker, read_exactly
from unskew.federation.site import connection
from unskew.federation.site.connection import (
    AccessDenied,
    AnswerLoop,
    AnswerRefused,
    FleetError,
    KeyInUse,
    ServerUnreachable,
)

pytestmark = pytest.mark.flower
REQUEST = SignedMessage("{}", b"signature", b"blob")
ANSWER = SignedMessage('{"answer": 1}', b"signature", b"blob")


def message(seconds: float = 5.0) -> Message:
    fake.grid_of({})  # which sets what Flower's messages want to know of their process
    return Message(pack_message(REQUEST), 1, "train", ttl=seconds)


@dataclass
class Script:
    """A Connection that plays what each call does: returns a value, or raises an error. At its end `over` is
    set."""

    receive_: list = field(default_factory=list)
    connect_: list = field(default_factory=list)
    reply_: list = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    replies: list = field(default_factory=list)
    beats: int = 0
    forgotten: int = 0
    left: bool = False

    def _next(self, script: list):
        value = script.pop(0) if script else None
        if isinstance(value, Exception):
            raise value
        return value

    def connect(self) -> None:
        self._next(self.connect_)

    def beat(self) -> None:
        self.beats += 1

    def receive(self):
        if not self.receive_:
            self.over.set()
        return self._next(self.receive_)

    def reply(self, message, answer) -> None:
        self._next(self.reply_)
        self.replies.append(answer)

    def forget(self) -> None:
        self.forgotten += 1

    def leave(self) -> None:
        self.left = True


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(connection, "RETRY_S", 0.1)
    monkeypatch.setattr(connection, "QUICK_S", 0.01)


def played(script: Script, answer=lambda request, seconds: ANSWER) -> list[str]:
    said: list[str] = []
    AnswerLoop(script, answer, said.append, "a", script.over).run()
    assert script.left
    return said


def test_a_message_is_answered():
    script = Script([message(), None])
    played(script)
    assert script.replies == [ANSWER]
    assert script.forgotten == 1


@pytest.mark.parametrize("error", [ServerUnreachable("502"), AccessDenied("unknown")])
def test_the_server_is_tried_again_until_it_is_there(error):
    """N12: whatever stands in the server's place, and whoever has to admit the key first."""
    said = played(Script([message(), None], [error, error, error]))
    assert len([text for text in said if "tried again" in text]) == 3
    assert said[-1] == "connected to the server again after 0 s"
    assert ("Is a.pub admitted?" in said[0]) == isinstance(error, AccessDenied)


def test_an_admitted_key_that_is_in_use_is_not_called_unknown():
    """N13: on a second machine, or after a restart, the site and the server said that it was not admitted."""
    said = played(Script([message(), None], [KeyInUse("another machine is connected with it")]))
    assert "does not let this site in: another machine" in said[0]
    assert "admitted" not in said[0]


def test_an_answer_that_could_not_be_sent_is_sent_after_the_network_is_back():
    script = Script([message(), None], reply_=[ServerUnreachable("cut"), ServerUnreachable("cut")])
    played(script)
    assert script.replies == [ANSWER]


def test_an_answer_that_came_too_late_is_not_sent():
    script = Script([message(0.1), None])
    played(script, lambda request, seconds: time.sleep(0.2) or ANSWER)
    assert script.replies == []
    assert script.forgotten == 1


def test_an_answer_to_a_run_that_is_over_is_let_go():
    script = Script([message(), None], reply_=[AnswerRefused("over")])
    said = played(script)
    assert script.replies == []
    assert any("not wanted any more" in text for text in said)


def test_a_worker_that_ends_or_hangs_is_said_at_once():
    for error, text in (
        (ConnectionResetError(), "ended while it worked"),
        (TimeoutError(), "did not answer in time"),
    ):

        def failing(request, seconds, error=error):
            raise error

        script = Script([message(), None])
        played(script, failing)
        assert text in script.replies[0]


def test_a_message_that_is_not_ours_is_refused():
    from flwr.app import ConfigRecord, RecordDict

    strange = message()
    strange.content = RecordDict({"config": ConfigRecord({"run": "this"})})
    script = Script([strange, None])
    played(script)
    assert "a message without" in script.replies[0]


def test_heartbeats_go_on_while_a_request_is_worked_on(monkeypatch):
    monkeypatch.setattr(connection, "BEAT_S", 0.02)
    script = Script([message(), None])
    played(script, lambda request, seconds: time.sleep(0.3) or ANSWER)
    assert script.beats >= 5


def test_no_pause_is_long_beside_the_silence_before_it(monkeypatch):
    clock, pauses = [0.0], []

    class Over(threading.Event):
        def wait(self, timeout=None):
            pauses.append((clock[0], timeout))
            clock[0] += timeout
            return False

    monkeypatch.setattr(connection.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(connection.threading.Thread, "start", lambda self: None)
    script = Script([None] * 400, over=Over())
    played(script)
    assert all(0.01 <= pause <= max(0.01, silence / 50) + 1e-9 or pause == 2.0 for silence, pause in pauses)
    assert pauses[-1][1] == 2.0


def test_a_question_that_has_waited_at_the_front_is_followed_by_the_next_without_a_pause(monkeypatch):
    clock, pauses = [100.0], []

    class Over(threading.Event):
        def wait(self, timeout=None):
            pauses.append(timeout)
            return False

    class Held(Script):
        def receive(self):
            clock[0] += 2.0
            return super().receive()

    monkeypatch.setattr(connection.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(connection.threading.Thread, "start", lambda self: None)
    played(Held([None] * 50, over=Over()))
    assert set(pauses) == {0.0}


def test_a_worker_that_still_loads_its_data_is_waited_for(tmp_path):
    """N10: data that took 70 s to load, and the site was never asked again."""
    path = tmp_path / "worker"
    path.touch()  # of a worker that was killed

    def load() -> None:
        time.sleep(0.5)
        path.unlink()
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(str(path))
            door.listen()
            line, _ = door.accept()
            with line:
                read_exactly(line, BUDGET.size)
                SignedMessage.receive(line, tmp_path)
                ANSWER.send(line)

    threading.Thread(target=load, daemon=True).start()
    assert ask_worker(path, tmp_path, REQUEST, 20) == ANSWER
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        ask_worker(tmp_path / "none", tmp_path, REQUEST, 0.3)
    assert time.monotonic() - began < 5


def test_no_empty_piece_is_sent_to_a_line_that_may_be_closed_already():
    """A worker believed that its answer without tensors had come too late."""
    pieces: list[bytes] = []

    class Line:
        def sendall(self, piece: bytes) -> None:
            pieces.append(piece)

    SignedMessage("{}", b"signature", b"").send(Line())
    assert all(pieces)


def test_every_failure_of_a_call_is_one_of_three():
    assert {kind.__name__ for kind in FleetError.__subclasses__()} == {
        "ServerUnreachable",
        "AccessDenied",
        "AnswerRefused",
    }


@pytest.mark.parametrize("error", [RecursionError("deep"), MemoryError(), ZeroDivisionError()])
def test_whatever_a_message_raises_the_site_goes_on(error, monkeypatch):
    """N12: one message without a signature ended the site for good."""
    script = Script([error, message(), None], [error])
    said = played(script)
    assert script.replies == [ANSWER]
    assert len([text for text in said if text.startswith(f"unexpected: {type(error).__name__}")]) == 2

    def failing(*_):
        raise error

    script = Script([message(), message(), None])
    played(script, failing)
    assert len(script.replies) == 2
    assert "could not be handed" in script.replies[0]
    monkeypatch.setattr(connection, "unpack_message", failing)
    script = Script([message(), message(), None])
    played(script)
    assert len(script.replies) == 2
    assert "cannot be read" in script.replies[0]


def test_a_site_whose_connection_has_ended_does_not_look_alive(monkeypatch, tmp_path):
    """N12: the process stayed, with exit code 0 at its end, and answered nobody."""
    from types import SimpleNamespace

    from unskew.errors import UnskewError
    from unskew.federation.site import processes

    monkeypatch.setattr(connection, "Fleet", lambda joined: None)
    monkeypatch.setattr(AnswerLoop, "run", lambda self: None)
    ticket = SimpleNamespace(site="a")
    site = processes.SiteProcesses(SimpleNamespace(ticket=ticket), "data")
    stopped = []
    worker = SimpleNamespace(tend=lambda say: None, stop=lambda: stopped.append(1))
    with pytest.raises(UnskewError, match="E507 this site's connection ended unexpectedly"):
        site._take_part(tmp_path / "worker", worker, iter([False] * 9 + [True] * 9).__next__)
    assert stopped == [1]  # a worker that goes on with a request would keep the process


def test_a_connection_that_is_lost_is_counted_once_and_known_to_be_lost(monkeypatch):
    """For the figures of a site: a server that stays away is one loss, however often it is tried."""
    monkeypatch.setattr(connection, "RETRY_S", 0.01)
    script = Script(
        receive_=[None, ServerUnreachable("gone")],
        connect_=[None, ServerUnreachable("still"), ServerUnreachable("still"), None],
    )
    seen = []
    one = AnswerLoop(script, lambda *_: ANSWER, lambda text: seen.append(one.connected), "b", script.over)
    one.run()
    assert one.losses == 1
    assert seen[1] is False
    assert one.connected


def test_pauses_grow_while_the_server_is_away_and_begin_small_when_it_was_there_again(monkeypatch):
    """A site that was cut off often would else wait its longest after each cut."""
    pauses: list[float] = []
    monkeypatch.setattr(connection.random, "uniform", lambda low, high: pauses.append(high) or 0.0)
    away = [ServerUnreachable("gone") for _ in range(7)]
    played(Script([None, away[0], None], [*away[1:3], None, *away[3:], None]))
    assert pauses == pytest.approx([0.01, 0.02, 0.01, 0.02, 0.04, 0.08, 0.1])


@pytest.mark.parametrize("kind", [FileNotFoundError, ConnectionResetError, RuntimeError])
def test_nothing_of_an_error_but_its_name_goes_to_the_coordinator(kind):
    """Its text may name a file of the site, and with it a patient."""

    def fails(request, seconds):
        raise kind("/data/anna.nii")

    script = Script([message(), None])
    played(script, fails)
    (answer,) = script.replies
    assert kind.__name__ in answer
    assert "anna" not in answer
