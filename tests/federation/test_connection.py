"""A site's two processes: the connection when the network, the server or the worker fails, and how the worker
answers it."""

from __future__ import annotations

import os
import socket
import threading
from types import SimpleNamespace

import pytest

from unskew.federation.protocol.signed_messages import BUDGET, SignedMessage, ask_worker
from unskew.federation.site import worker
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.tickets import Coordinator

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeResponse, PullMessagesResponse
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse
from flwr.supercore.inflatable.inflatable_object import get_object_tree

from tests.federation import fake  # skips where cryptography is missing
from unskew.federation.protocol.flower_messages import pack_message
from unskew.federation.site import connection
from unskew.federation.site.connection import (
    AccessDenied,
    AnswerLoop,
    AnswerRefused,
    Fleet,
    KeyInUse,
    ServerUnreachable,
)
from unskew.federation.tickets import Ticket

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
        pass

    def leave(self) -> None:
        self.left = True


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(connection, "RETRY_S", 0.1)
    real = connection.FleetHttpClient  # the server of these tests speaks plain text
    monkeypatch.setattr(
        connection, "FleetHttpClient", lambda url, **more: real(url.replace("https", "http", 1), **more)
    )


def played(script: Script, answer=lambda request, seconds: ANSWER) -> list[str]:
    said: list[str] = []
    AnswerLoop(script, answer, said.append, "a", script.over).run()
    assert script.left
    return said


@pytest.mark.parametrize("error", [ServerUnreachable("502"), AccessDenied("unknown")])
def test_the_server_is_tried_again_until_it_is_there(error):
    said = played(Script([message(), None], [error, error, error]))
    assert len([text for text in said if "tried again" in text]) == 3
    assert said[-1] == "connected to the server again after 0 s"
    assert ("Is a.pub admitted?" in said[0]) == isinstance(error, AccessDenied)


def test_an_answer_that_could_not_be_sent_is_sent_after_the_network_is_back():
    script = Script([message(), None], reply_=[ServerUnreachable("cut"), ServerUnreachable("cut")])
    played(script)
    assert script.replies == [ANSWER]


def test_an_answer_that_came_too_late_is_not_sent():
    script = Script([message(0.1), None])
    played(script, lambda request, seconds: time.sleep(0.2) or ANSWER)
    assert script.replies == []


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


def test_heartbeats_go_on_while_a_request_is_worked_on(monkeypatch):
    monkeypatch.setattr(connection, "BEAT_S", 0.02)
    script = Script([message(), None])
    played(script, lambda request, seconds: time.sleep(0.3) or ANSWER)
    assert script.beats >= 5


@pytest.mark.parametrize("error", [RecursionError("deep"), MemoryError(), ZeroDivisionError()])
def test_whatever_a_message_raises_the_site_goes_on(error, monkeypatch):
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


ACTIVATED, BEATEN = (
    ActivateNodeResponse(node_id=12).SerializeToString(),
    SendNodeHeartbeatResponse(success=True),
)
IN_USE = b'{"code": 2004, "detail": "no"}'


def pulled() -> bytes:
    """An answer with one message whose content is still to be pulled."""
    fake.grid_of({})  # which sets what Flower's messages want to know of their process
    message = Message(pack_message(SignedMessage("{}", b"", b"")), 12, "train", ttl=60)
    message.metadata.__dict__["_message_id"] = message.object_id
    answer = PullMessagesResponse(
        messages_list=[message_to_proto(remove_content_from_message(message))],
        message_object_trees=[get_object_tree(message)],
    )
    return answer.SerializeToString()


class Server:
    """Answers by the call's name with (status, body); everything else with 404.

    asked: the calls, in order. lines: the connections by which they came.
    """

    def __init__(self, **answers: tuple[int, bytes]):
        server = self
        self.answers, self.asked, self.lines = answers, [], set()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"  # which keeps connections, as the front does

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                call = self.path.removeprefix("/v1/fleet/").replace("-", "_")
                server.asked.append(call)
                server.lines.add(self.client_address)
                status, body = server.answers.get(call, (404, b""))
                self.send_response(status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


def fleet_at(tmp_path, port: int) -> Fleet:
    """Of a site that has joined a federation at this port."""
    folder = tmp_path / "site"
    if folder.exists():
        return Fleet(SiteFolder.open(folder))
    home = Coordinator.make(tmp_path / "fed", "lung", f"127.0.0.1:{port}", ["a"])
    return Fleet(SiteFolder.make(folder, Ticket.read(home.folder / "tickets/a.ticket")))


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((200, b"<html>Welcome to the proxy</html>"), ServerUnreachable),
        ((502, b"Bad Gateway"), ServerUnreachable),
        ((503, b""), ServerUnreachable),
        ((404, b"{}"), ServerUnreachable),
        ((401, b""), AccessDenied),
        ((400, IN_USE), KeyInUse),
        ((403, b""), AnswerRefused),
    ],
)
def test_an_answer_that_is_none_is_sorted(tmp_path, answer, error):
    with pytest.raises(error):
        fleet_at(tmp_path, Server(activate_node=answer).port).connect()


def test_a_site_comes_back_under_its_number_without_being_admitted_again(tmp_path):
    server = Server(activate_node=(200, ACTIVATED), send_node_heartbeat=(200, BEATEN.SerializeToString()))
    fleet_at(tmp_path, server.port).connect()
    server.asked.clear()
    fleet_at(tmp_path, server.port).connect()
    assert server.asked == ["send_node_heartbeat"]


def test_a_transfer_that_failed_goes_on_after_a_new_connection(tmp_path):
    """The server hands a message out once."""
    server = Server(
        activate_node=(200, ACTIVATED), send_node_heartbeat=(200, BEATEN.SerializeToString()),
        pull_messages=(200, pulled()), pull_object=(503, b""),
    )  # fmt: skip
    fleet = fleet_at(tmp_path, server.port)
    for asked in (1, 0):
        server.asked.clear()
        fleet.connect()
        with pytest.raises(ServerUnreachable):
            fleet.receive()
        assert server.asked.count("pull_messages") == asked


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
