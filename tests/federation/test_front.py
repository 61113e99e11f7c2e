"""The front: real TLS on loopback before a server that only says what reached it."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

import asyncio
import base64
import contextlib
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import httpx
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.superlink.routers.fleet.router import router

from unskew.federation import journal
from unskew.federation import tickets as admission
from unskew.federation.front import connections, proxy
from unskew.federation.front.access import (
    MOST_PAIRS,
    OTHER_ADDRESSES,
    Refusals,
)
from unskew.federation.front.connections import MessageWait
from unskew.federation.front.proxy import MOST_EACH, PUSH_OBJECT, Proxy, Signals, is_answer
from unskew.federation.signals import Bell, IdleNodes
from unskew.federation.site import site_folder as site_checks
from unskew.federation.site.connection import Fleet, KeyInUse
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.tickets import Coordinator, Ticket

pytestmark = pytest.mark.flower
PULL, PUSH = "/v1/fleet/pull-messages", "/v1/fleet/push-object"


@dataclass
class Front:
    """A front in a thread, with two admitted sites, a and b, and a third that has only joined.

    reached: the requests that came to the server behind it. answer: what that server does.
    """

    home: Coordinator
    sites: dict[str, SiteFolder]
    reached: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    thread: threading.Thread = field(default_factory=threading.Thread)
    answer: Callable[[], httpx.Response] = lambda: httpx.Response(200, stream=httpx.ByteStream(b"ok"))

    @property
    def where(self) -> tuple[str, int]:
        return "127.0.0.1", self.home.port

    def refusals(self) -> list[tuple[str, str]]:
        """Who was refused, and why."""
        pairs = (line.removeprefix(f"{proxy.REFUSED} ").split(": ", 1) for line in self.lines)
        return [(who, why) for who, why in pairs]

    def refused(self, who: str, why: str) -> None:
        """Wait until somebody was refused for this reason."""
        until(lambda: any(who == w and why in y for w, y in self.refusals()), lambda: str(self.lines))

    def line(self, site: str) -> ssl.SSLSocket:
        """A connection on which this site has proven its key."""
        line = socket.create_connection(self.where, timeout=5)
        return self.sites[site].tls().wrap_socket(line, server_hostname="127.0.0.1")

    def post(self, path: str, site: str = "a", key: str = "", content: bytes = b"x", **more: str) -> int:
        """The status of the answer to a request like one of Flower's. key: the site in Flower's header."""
        with httpx.Client(verify=self.sites[site].tls(), timeout=8) as client:
            headers = {
                "content-type": "application/protobuf",
                "flwr-public-key": self.header(key or site),
                **more,
            }
            return client.post(
                f"https://127.0.0.1:{self.home.port}{path}", content=content, headers=headers
            ).status_code

    def header(self, site: str) -> str:
        return base64.b64encode(public_key_to_bytes(self.sites[site].key.key.public_key())).decode()

    def raw(self, site: str, text: str) -> str:
        """The first line of the answer to this text, "" if the connection is closed without one."""
        with self.line(site) as line:
            line.sendall(text.replace("\n", "\r\n").encode())
            with contextlib.suppress(OSError):
                return line.recv(1000).decode().partition("\r\n")[0]
        return ""


def until(there: Callable[[], bool], what: Callable[[], str] = lambda: "", seconds: float = 8.0) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, what()
        time.sleep(0.02)


@contextlib.contextmanager
def standing(root) -> Iterator[Front]:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    home = Coordinator.make(root / "fed", "lung", f"127.0.0.1:{listener.getsockname()[1]}", ["a", "b", "c"])
    sites = {s: SiteFolder.make(root / s, Ticket.read(home.ticket_file(s))) for s in home.sites}
    for site in "ab":
        home.admit(site, sites[site].key.public)
    front = Front(home, sites)

    async def handle(request: httpx.Request) -> httpx.Response:
        front.reached.append((request.url.path, dict(request.headers), await request.aread()))
        return front.answer()

    server = httpx.AsyncClient(transport=httpx.MockTransport(handle), base_url="http://behind")
    loop = asyncio.new_event_loop()
    task = loop.create_task(proxy.serve(home, listener, server, front.lines.append))

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)

    front.thread = threading.Thread(target=run, daemon=True)
    front.thread.start()
    try:
        yield front
    finally:
        loop.call_soon_threadsafe(task.cancel)
        front.thread.join(10)
        listener.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with standing(tmp_path_factory.mktemp("front")) as front:
        yield front


@pytest.fixture
def front(shared):
    shared.reached.clear()
    answer = shared.answer
    yield shared
    shared.answer = answer


@pytest.mark.parametrize("path", proxy.CALLS)
def test_what_a_site_asks_for_reaches_flowers_server_and_nothing_else_of_it(front, path):
    content = announced() if path == proxy.PUSH_MESSAGES else b"hello"
    assert front.post(path, content=content, cookie="c", **{"x-forwarded-for": "1.2.3.4"}) == 200
    ((reached, headers, body),) = front.reached
    assert (reached, body, headers["content-length"]) == (path, content, str(len(content)))
    assert headers["flwr-public-key"] == front.header("a")
    assert not {"cookie", "x-forwarded-for"} & set(headers)


def test_a_copy_of_a_sites_folder_does_not_take_part_beside_it(tmp_path):
    with standing(tmp_path) as front:
        front.sites["copy"] = SiteFolder(
            shutil.copytree(front.sites["a"].folder, tmp_path / "copy"), front.sites["a"].ticket
        )
        assert front.post(PULL, "a") == 200
        assert front.post(PULL, "copy") == 409
        front.refused("a", "is connected from another place with the same key")
        assert len(front.reached) == 1
        assert front.post(PULL, "b") == front.post(PULL, "a") == 200
        assert not [f.text for f in site_checks.network(front.sites["copy"]) if not f.ok], (
            "a check of it is no part"
        )
        with pytest.raises(KeyInUse, match="another process or machine is connected with this site's key"):
            Fleet(front.sites["copy"]).connect()


@pytest.mark.parametrize(
    "path",
    [
        *("/docs", "/openapi.json", "/redoc", "/health", "/v1/control/start-run", "/v1/runtime/acquire-task"),
        *("/v1/fleet/register-node", "/v1/fleet/unregister-node", "/v1/fleet/get-fab", "/v1/fleet/get-run"),
        *(
            f"{PULL}/",
            f"{PULL}?x=1",
            f"{PULL}//",
            "/v1/fleet/../control/start-run",
            "/v1/fleet/%2e%2e/control/start-run",
        ),
        *("//v1/fleet/pull-messages", "/v1/fleet/pull%2dmessages", "/V1/fleet/pull-messages"),
    ],
)
def test_an_admitted_site_reaches_nothing_but_the_fleet_calls_it_makes(front, path):
    head = f"POST {path} HTTP/1.1\nHost: h\nContent-Type: application/protobuf\nContent-Length: 1\n"
    assert " 404 " in front.raw("a", f"{head}flwr-public-key: {front.header('a')}\n\nx")
    assert not front.reached
    front.refused("a", "may not ask for")


def test_a_request_is_refused_by_its_headers_before_its_body_is_read(front):
    big = 8 << 20
    assert front.post(PUSH, content=bytes(big)) == 200
    front.reached.clear()
    head = (
        f"POST {PUSH} HTTP/1.1\nHost: h\nContent-Type: application/protobuf\nflwr-public-key:"
        f" {front.header('a')}\n"
    )
    for more, status in (
        (f"Content-Length: {big + 1}\n", 413),
        ("Content-Length: 400000000\nExpect: 100-continue\n", 413),
        ("Transfer-Encoding: chunked\n", 411),
        ("Transfer-Encoding: chunked\nContent-Length: 1\n", 411),
        ("Content-Length: 1\nContent-Encoding: gzip\n", 400),
        (f"Content-Length: 1\nflwr-public-key: {front.header('b')}\n", 400),
        ("Content-Length: 1\nContent-Length: 2\n", 400),
        (f"Content-Length: 1\nX: {'x' * connections.HEAD_BYTES}\n", 431),
    ):
        assert f" {status} " in front.raw("a", f"{head}{more}\n"), more[:40]
    assert not front.reached


def test_a_site_speaks_with_its_own_key_only(front):
    assert front.post(PULL, site="a", key="b") == 401
    assert " 400 " in front.raw("a", f"GET {PULL} HTTP/1.1\nHost: h\n\n")
    for header in ("", "!", base64.b64encode(b"no key").decode()):
        assert front.post(PULL, **{"flwr-public-key": header}) == 401
    assert not front.reached
    front.refused("a", "the key of another site")


def test_every_call_of_a_site_is_one_that_flowers_server_answers():
    """And of the calls that it answers, those that bring code or another key are not let through."""
    answered = {route.path for route in router.routes}
    assert answered - set(proxy.CALLS) == {
        f"/v1/fleet/{name}" for name in ("register-node", "unregister-node", "get-run", "get-fab")
    }


def test_a_key_that_is_removed_is_out_with_its_open_connections_and_no_other(tmp_path):
    with standing(tmp_path) as front, front.line("a") as a, front.line("b") as b:
        for line in (a, b):
            line.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            assert b"204" in line.recv(1000)
        admission.revoke(front.home, "a")
        began = time.monotonic()
        with contextlib.suppress(OSError):
            assert a.recv(1) == b""
        assert time.monotonic() - began < 2
        with pytest.raises((httpx.TransportError, ssl.SSLError)):
            front.post(PULL)
        front.refused("127.0.0.1", "not of an admitted key")
        verdict = journal.verify(front.home.folder / journal.JOURNAL_FILE, front.home.key.public)
        assert (verdict.wrong, verdict.lines > 1) == ("", True)
        b.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert b"204" in b.recv(1000)
        front.home.admit("a", front.sites["a"].key.public)
        until(lambda: _status(front) == 200)
        front.home.key_file("b").write_text("damaged")
        until(lambda: _status(front, "b") == 0)
        assert _status(front) == 200


def _status(front: Front, site: str = "a") -> int:
    try:
        return front.post(PULL, site)
    except httpx.TransportError:
        return 0


def test_whoever_dawdles_is_cut_off(tmp_path, monkeypatch):
    """Slow handshakes, slow bodies, and too many of each."""
    monkeypatch.setattr(connections, "HANDSHAKE_S", 0.5)
    monkeypatch.setattr(proxy, "PATIENCE_S", 0.5)
    with standing(tmp_path) as front:
        silent = [socket.create_connection(front.where) for _ in range(connections.MOST_UNPROVEN_EACH + 3)]
        front.refused("127.0.0.1", "too many connections at once")
        front.refused("127.0.0.1", "proved no key within")
        for line in silent:
            line.settimeout(5)
            with contextlib.suppress(OSError):
                assert line.recv(1) == b""
            line.close()
        head = f"POST {PUSH} HTTP/1.1\r\nHost: h\r\nContent-Type: application/protobuf\r\n"
        with front.line("a") as line:
            line.sendall(f"{head}flwr-public-key: {front.header('a')}\r\nContent-Length: 9\r\n\r\nx".encode())
            assert b" 408 " in line.recv(1000)


def test_strangers_take_no_places_from_a_site_that_was_there_before(tmp_path, monkeypatch):
    monkeypatch.setattr(connections, "MOST_UNPROVEN", 3)
    with standing(tmp_path) as front:
        assert _status(front) == 200
        silent = [
            socket.create_connection(front.where, source_address=(f"127.0.0.{k}", 0)) for k in (5, 6, 7, 8)
        ]
        front.refused("127.0.0.8", "too many connections at once")
        assert _status(front) == 200
        for line in silent:
            line.close()


def test_a_flood_writes_few_lines_and_none_of_its_attempts_goes_uncounted():
    now, lines = [0.0], []
    refusals = Refusals(lambda *line: lines.append(line), lambda: now[0])
    for second in range(7200):
        now[0] = second / 2
        refusals.note("198.51.100.7", "offers no certificate")
        refusals.note(f"198.51.100.{second % 200}", "does not speak TLS")
    refusals.flush(everything=True)
    assert sum(times for _, _, times in lines) == 2 * 7200
    assert len([why for _, why, _ in lines if why == "offers no certificate"]) < 15
    assert len(lines) < 500
    assert OTHER_ADDRESSES in {who for who, _, _ in lines}
    assert len(refusals._times) <= MOST_PAIRS + 2


class Standing:
    """A front's `Proxy` before a server that answers nobody until it is told to. reached: whose requests it
    has."""

    def __init__(self, folder):
        self.reached, self.go = [], asyncio.Event()
        server = httpx.AsyncClient(base_url="http://x", transport=httpx.MockTransport(self._answer))
        news = MessageWait(Bell(folder / "bell"))
        signs = Signals(news, Bell(folder / "answers"), IdleNodes(folder / "idle"))
        self.passing = Proxy(server, Refusals(lambda *_: None), signs)
        self.said: list[int] = []

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        self.reached.append((await request.aread()).decode())
        await self.go.wait()
        return httpx.Response(200)

    async def call(self, site: str, method: str = "POST", path: str = PUSH_OBJECT) -> None:
        headers = [(b"content-type", b"application/protobuf"), (b"content-length", b"1")] * (method == "POST")
        state = {"site": site, "key": "", "heard": {}, "place": 0}
        scope = {
            "method": method,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": headers,
            "state": state,
        }

        async def receive():
            return {"type": "http.request", "body": site.encode(), "more_body": False}

        async def send(message):
            if "status" in message:
                self.said.append(message["status"])

        await self.passing(scope, receive, send)


def test_a_site_whose_requests_all_hang_leaves_places_for_the_others(tmp_path):
    """32 connections of one site, each with a piece that came slowly, took half of all places; two sites took
    all."""

    async def play():
        front = Standing(tmp_path)
        calls = [asyncio.create_task(front.call("a")) for _ in range(MOST_EACH + 5)]
        calls.append(asyncio.create_task(front.call("b")))
        await asyncio.sleep(0.05)
        assert sorted(front.reached) == ["a"] * MOST_EACH + ["b"]
        front.go.set()
        await asyncio.gather(*calls)
        assert front.said == [200] * (MOST_EACH + 6)

    asyncio.run(play())


def announced(**changes: object) -> bytes:
    """An honest announcement, with other facts."""
    facts = {
        "message_id": "m",
        "reply_to_message_id": "r",
        "src_node_id": 7,
        "node": 7,
        "root": "m",
        "count": 1,
    } | changes
    metadata = Metadata(**{n: facts[n] for n in ("message_id", "reply_to_message_id", "src_node_id")})  # type: ignore[arg-type]
    return PushMessagesRequest(
        node=Node(node_id=facts["node"]),
        messages_list=[Message(metadata=metadata)] * facts["count"],
        message_object_trees=[ObjectTree(object_id=facts["root"])] * facts["count"],
    ).SerializeToString()


def test_what_a_site_announces_is_one_answer_of_its_own():
    """Flower's server takes requests from sites, too: to any node, in the coordinator's name; and for one
    answer as many lists of pieces as it is sent, each of which it keeps until the run is over."""
    assert is_answer(announced())
    for wrong in (
        {"reply_to_message_id": ""},
        {"src_node_id": 1},
        {"node": 8},
        {"root": "another"},
        {"count": 2},
        {"count": 0},
    ):
        assert not is_answer(announced(**wrong)), wrong
    assert not is_answer(b"hello")
