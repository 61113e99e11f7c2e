"""What a site makes of whatever answers in the server's place."""

from __future__ import annotations

import select
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeResponse, PullMessagesResponse
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from google.protobuf.message import DecodeError

from tests.federation import fake  # skips where cryptography is missing
from unskew.errors import Paused
from unskew.federation.addresses import free_port
from unskew.federation.protocol.flower_messages import pack_message, unpack_message
from unskew.federation.protocol.signed_messages import SignedMessage
from unskew.federation.site import connection as fleet_module
from unskew.federation.site.connection import (
    AccessDenied,
    AnswerRefused,
    Fleet,
    KeyInUse,
    MessageNotKept,
    ServerUnreachable,
)
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.tickets import Coordinator, Ticket
from unskew.system import disk

pytestmark = pytest.mark.flower
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
    """Of a site that has joined a federation without TLS at this port."""
    folder = tmp_path / "site"
    if folder.exists():
        return Fleet(SiteFolder.open(folder))
    home = Coordinator.make(tmp_path / "fed", "lung", f"127.0.0.1:{port}", ["a"], tls=False)
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
    """N12: a proxy that answers while the server is down ended the site."""
    with pytest.raises(error):
        fleet_at(tmp_path, Server(activate_node=answer).port).connect()


def test_nobody_there_is_unreachable(tmp_path):
    with pytest.raises(ServerUnreachable):
        fleet_at(tmp_path, free_port()).connect()


def test_a_site_comes_back_under_its_number_without_being_admitted_again(tmp_path):
    """Flower admits a node that was killed only after a minute."""
    server = Server(activate_node=(200, ACTIVATED), send_node_heartbeat=(200, BEATEN.SerializeToString()))
    fleet_at(tmp_path, server.port).connect()
    server.asked.clear()
    fleet_at(tmp_path, server.port).connect()
    assert server.asked == ["send_node_heartbeat"]


def test_a_server_that_has_lost_its_database_is_asked_for_a_new_number(tmp_path):
    server = Server(activate_node=(200, ACTIVATED), send_node_heartbeat=(401, b""))
    fleet_at(tmp_path, server.port).connect()
    server.asked.clear()
    fleet_at(tmp_path, server.port).connect()
    assert "activate_node" in server.asked


def test_a_message_that_a_crash_has_left_open_is_excused_once(tmp_path):
    """Or the server would wait for its answer until the deadline."""
    server = Server(
        activate_node=(200, ACTIVATED), send_node_heartbeat=(200, BEATEN.SerializeToString()),
        push_messages=(200, b""), pull_messages=(200, pulled()), pull_object=(503, b""),
    )  # fmt: skip
    fleet = fleet_at(tmp_path, server.port)
    fleet.connect()
    with pytest.raises(ServerUnreachable):
        fleet.receive()
    server.asked.clear()
    fleet.connect()
    with pytest.raises(ServerUnreachable):
        fleet.receive()
    assert "push_messages" not in server.asked, "the same process goes on with it"
    assert "pull_messages" not in server.asked
    for excused in (1, 0):
        server.asked.clear()
        fleet_at(tmp_path, server.port).connect()
        assert server.asked.count("push_messages") == excused


def test_a_message_that_nothing_can_read_is_excused_and_forgotten(tmp_path, monkeypatch):
    """N12: an exception that nobody expected of Flower's parsers ended the site; others made it ask for
    ever."""
    for error in (DecodeError, RecursionError, ValueError, MemoryError):

        def failing(*_, error=error, **__):
            raise error

        monkeypatch.setattr(fleet_module.Arrival, "go_on", failing)
        server = Server(
            activate_node=(200, ACTIVATED), send_node_heartbeat=(200, BEATEN.SerializeToString()),
            push_messages=(200, b""), pull_messages=(200, pulled()),
        )  # fmt: skip
        fleet = fleet_at(tmp_path / error.__name__, server.port)
        fleet.connect()
        message = fleet.receive()
        assert message is not None
        with pytest.raises(ValueError, match="a message without"):
            unpack_message(message.content)
        fleet.reply(message, "the request cannot be read")
        assert "push_messages" in server.asked, "the server waits for an answer"
        fleet.forget()
        assert not (tmp_path / error.__name__ / "site/answering").exists()


def test_a_proxy_that_answers_for_a_piece_says_nothing_about_the_message(tmp_path):
    server = Server(
        activate_node=(200, ACTIVATED), send_node_heartbeat=(200, BEATEN.SerializeToString()),
        pull_messages=(200, pulled()), pull_object=(200, b"<html>Welcome to the proxy</html>"),
    )  # fmt: skip
    fleet = fleet_at(tmp_path, server.port)
    fleet.connect()
    for _ in range(2):
        with pytest.raises(ServerUnreachable):
            fleet.receive()
    assert server.asked.count("pull_messages") == 1


def test_what_a_crash_has_left_open_need_not_be_readable(tmp_path):
    """N12: or the site could not connect again."""
    server = Server(activate_node=(200, ACTIVATED), send_node_heartbeat=(200, BEATEN.SerializeToString()))
    fleet_at(tmp_path, server.port)
    (tmp_path / "site/answering").write_bytes(b"\xff" * 50)
    fleet_at(tmp_path, server.port).connect()
    assert not (tmp_path / "site/answering").exists()


def test_a_full_disk_costs_no_message(tmp_path, monkeypatch):
    """N15: the server had handed a message out, which was lost when its head could not be kept, and both ends
    waited."""
    answers = {"activate_node": (200, ACTIVATED), "pull_messages": (200, pulled())}
    fleet = fleet_at(tmp_path, Server(**answers).port)
    fleet.connect()

    def full(*_):
        raise Paused("E203", "disk full: cannot write.")

    monkeypatch.setattr(disk, "replace", full)
    monkeypatch.setattr(fleet, "_receive_content", lambda run, arrival: (run, arrival.tree))
    _, tree = fleet.receive()
    assert tree.object_id


def test_a_message_that_the_disk_has_no_room_for_is_handed_on_without_its_content(tmp_path, monkeypatch):
    def full(*_, **__):
        raise Paused("E203", "disk full: cannot write a large message.")

    monkeypatch.setattr(fleet_module.Arrival, "go_on", full)
    server = Server(
        activate_node=(200, ACTIVATED), send_node_heartbeat=(200, BEATEN.SerializeToString()),
        push_messages=(200, b""), pull_messages=(200, pulled()),
    )  # fmt: skip
    fleet = fleet_at(tmp_path, server.port)
    fleet.connect()
    for _ in range(2):  # and the next question is for the next message
        with pytest.raises(MessageNotKept) as unkept:
            fleet.receive()
        assert isinstance(unkept.value.__cause__, Paused)
        fleet.reply(unkept.value.message, "E203")
    assert server.asked.count("pull_messages") == 2


class Proxy:
    """A TCP relay to a port of this machine, as a load balancer is, that drops what has been idle for a
    while."""

    def __init__(self, to: int, idle_s: float):
        self.to, self.idle_s, self.dropped = to, idle_s, 0
        self.door = socket.create_server(("127.0.0.1", 0))
        self.port = self.door.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            here, _ = self.door.accept()
            threading.Thread(target=self._relay, args=(here,), daemon=True).start()

    def _relay(self, here: socket.socket) -> None:
        with here, socket.create_connection(("127.0.0.1", self.to)) as there:
            other = {here: there, there: here}
            while ready := select.select([here, there], [], [], self.idle_s)[0]:
                for line in ready:
                    if not (data := line.recv(1 << 16)):
                        return
                    other[line].sendall(data)
        self.dropped += 1  # once both are closed: whoever asks before that is cut off in the middle


def test_an_idle_connection_that_a_proxy_has_cut_is_opened_again_in_silence(tmp_path):
    """A load balancer that drops idle connections must look like nothing at all."""
    server = Server(
        activate_node=(200, ACTIVATED),
        send_node_heartbeat=(200, BEATEN.SerializeToString()),
        pull_messages=(200, b""),
    )
    proxy = Proxy(server.port, 0.6)
    fleet = fleet_at(tmp_path, proxy.port)
    fleet.connect()
    for _ in range(3):
        assert fleet.receive() is None
        fleet.beat()
        seen = proxy.dropped
        end = time.monotonic() + 20
        while proxy.dropped == seen:
            assert time.monotonic() < end
            time.sleep(0.05)
    assert fleet.receive() is None
    assert len(server.lines) == 4
