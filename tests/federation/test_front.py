"""The front in this process: real TLS on loopback before a server that only says what reached it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

import httpx
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.superlink.routers.fleet.router import router

from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from tests.federation.test_front_places import announced
from unskew.federation import admission
from unskew.federation.front import connections, proxy
from unskew.federation.front.access import (
    MARK,
    MOST_NAMES,
    MOST_PAIRS,
    OTHER_ADDRESSES,
    RateLimit,
    Refusals,
    parse_refusal,
)
from unskew.federation.protocol.flower_messages import pack_message
from unskew.federation.protocol.identity import PrivateKey
from unskew.federation.protocol.signed_messages import SignedMessage
from unskew.federation.site import handshake, site_checks
from unskew.federation.site.connection import AccessDenied, Fleet, KeyInUse
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
        return [(str(fact["who"]), str(fact["why"])) for line in self.lines if (fact := parse_refusal(line))]

    def refused(self, who: str, why: str) -> None:
        """Wait until somebody was refused for this reason."""
        until(lambda: any(who == w and why in y for w, y in self.refusals()), lambda: str(self.lines))

    def line(self, site: str) -> ssl.SSLSocket:
        """A connection on which this site has proven its key."""
        context = self.sites[site].tls()
        assert context is not None
        return context.wrap_socket(
            socket.create_connection(self.where, timeout=5), server_hostname="127.0.0.1"
        )

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
    """Each of the two answered some of the requests, so that neither's record of what had left was right."""
    with standing(tmp_path) as front:
        front.sites["copy"] = SiteFolder(
            shutil.copytree(front.sites["a"].folder, tmp_path / "copy"), front.sites["a"].ticket
        )
        assert front.post(PULL, "a") == 200
        assert front.post(PULL, "copy") == 409
        front.refused("a", "is connected from another place with the same key")
        assert len(front.reached) == 1
        assert front.post(PULL, "b") == front.post(PULL, "a") == 200
        assert not [f.text for f in handshake.network(front.sites["copy"]) if not f.ok], (
            "a check of it is no part"
        )
        with pytest.raises(KeyInUse, match="another process or machine is connected with this site's key"):
            Fleet(front.sites["copy"]).connect()


def test_what_is_no_answer_of_the_site_that_speaks_is_not_passed_on(front):
    assert front.post(proxy.PUSH_MESSAGES, content=announced(reply_to_message_id="")) == 400
    front.refused("a", "announced something that is no answer of its own")
    assert not front.reached


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
    """N0: whoever reached the port could run Python of their own at every site."""
    head = f"POST {path} HTTP/1.1\nHost: h\nContent-Type: application/protobuf\nContent-Length: 1\n"
    assert " 404 " in front.raw("a", f"{head}flwr-public-key: {front.header('a')}\n\nx")
    assert not front.reached
    front.refused("a", "may not ask for")


def test_a_request_is_refused_by_its_headers_before_its_body_is_read(front):
    """N8: bodies of 400 MB were buffered."""
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


def test_a_site_is_told_whether_its_key_is_admitted(front):
    """And one whose key is not yet is no reason to give up: it may be admitted at any time."""
    for site, what, ok in (("a", "clock", True), ("c", "admission", False)):
        findings = {
            f.what: f for f in site_checks.check_site(front.sites[site].folder, "none.npz", ["no", "yes"])
        }
        assert findings["certificate"].ok
        assert findings[what].ok == ok, findings
        assert not handshake.rejection(front.sites[site])
    with pytest.raises(AccessDenied, match="a key that is not admitted"):
        Fleet(front.sites["c"]).connect()


def test_a_piece_of_a_tensor_is_small_enough_to_pass():
    """Flower cuts a message into objects, each of which travels in a call of its own."""
    objects = get_all_nested_objects(pack_message(SignedMessage("{}", b"", bytes(12 << 20)))).values()
    assert len(objects) > 2
    assert max(len(o.deflate()) for o in objects) < proxy.CALLS[PUSH] - (1 << 20)


def test_every_call_of_a_site_is_one_that_flowers_server_answers():
    """And of the calls that it answers, those that bring code or another key are not let through."""
    answered = {route.path for route in router.routes}
    assert set(proxy.calls(tls=False)) < answered
    assert answered - set(proxy.CALLS) == {
        f"/v1/fleet/{name}" for name in ("register-node", "unregister-node", "get-run", "get-fab")
    }


def test_a_small_answer_does_not_wait_for_the_next(front, monkeypatch):
    """Nagle's algorithm and delayed acknowledgements together cost 40 ms a request."""
    options: list[int] = []
    take = connections.Connection.connection_made

    def taken(self, transport):
        line = transport.get_extra_info("socket")
        options.append(line.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        take(self, transport)

    monkeypatch.setattr(connections.Connection, "connection_made", taken)
    assert front.post(PULL) == 200
    assert options
    assert all(options)


def test_a_site_that_checks_its_connection_is_told_the_time(front):
    with httpx.Client(verify=front.sites["a"].tls()) as client:
        answer = client.get(f"https://127.0.0.1:{front.home.port}/")
    assert (answer.status_code, answer.content) == (204, b"")
    assert "date" in answer.headers


@pytest.mark.parametrize("why", ["away", "half"])
def test_a_server_that_is_away_or_breaks_off_is_no_reason_to_give_up(front, why):
    def broken():
        raise httpx.ConnectError("away")

    async def half():
        yield b"ha"
        raise httpx.ReadError("gone")

    front.answer = (
        broken
        if why == "away"
        else lambda: httpx.Response(200, headers={"content-length": "4"}, content=half())
    )
    if why == "away":
        assert front.post(PULL) == 503
    else:
        with pytest.raises(httpx.TransportError):
            front.post(PULL)
    front.answer = lambda: httpx.Response(200, stream=httpx.ByteStream(b"ok"))
    assert front.post(PULL) == 200


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


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_certificate_that_is_just_being_replaced_ends_nothing_and_one_that_stays_broken_does(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(proxy, "LOOK_S", 0.05)
    monkeypatch.setattr(proxy, "MOST_UNREADABLE", 20)
    with standing(tmp_path) as front:
        path = front.home.folder / "server.crt"
        whole = path.read_text()
        assert _status(front) == 200
        path.write_text("half")
        time.sleep(0.3)
        assert _status(front) == 200
        path.write_text(whole)
        time.sleep(1.2)
        assert _status(front) == 200
        path.write_text("half")
        until(lambda: not front.thread.is_alive())


def test_an_admitted_site_lends_its_key_to_nobody(front, tmp_path):
    """Its anchor may sign certificates, and TLS accepts them; the key that was used is not admitted."""
    from cryptography.hazmat.primitives import serialization

    from unskew.federation import certificates

    stranger, own = PrivateKey.make(), front.sites["a"].key
    issuer = certificates.Issuer(certificates.x509_name(f"key {own.public.fingerprint}"), own.key)
    lent = issuer.certificate(certificates.x509_name("a"), stranger.public.key, certificates.LEAF)
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    secret = stranger.key.private_bytes(serialization.Encoding.PEM, *form)
    (tmp_path / "lent.pem").write_bytes(lent.public_bytes(serialization.Encoding.PEM) + secret)
    context = ssl.create_default_context(cadata=front.sites["a"].ticket.authority)
    context.load_cert_chain(tmp_path / "lent.pem")
    with pytest.raises(httpx.TransportError), httpx.Client(verify=context) as client:
        client.get(f"https://127.0.0.1:{front.home.port}/")
    front.refused("127.0.0.1", "not of an admitted key")


def test_whoever_dawdles_is_cut_off(tmp_path, monkeypatch):
    """Slow handshakes, slow headers, slow bodies, and too many of each."""
    monkeypatch.setattr(connections, "HANDSHAKE_S", 0.5)
    monkeypatch.setattr(connections, "HEAD_S", 0.5)
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
        for first, begun in (("", ""), ("", "POST"), ("GET / HTTP/1.1\r\nHost: h\r\n\r\n", head)):
            with front.line("a") as line:
                line.sendall(first.encode())
                assert not first or b" 204 " in line.recv(1000)
                line.sendall(begun.encode())
                began = time.monotonic()
                with contextlib.suppress(OSError):
                    while line.recv(1000):
                        pass
                assert time.monotonic() - began < 3
        front.refused("a", "no complete request within")
        with front.line("a") as line:
            line.sendall(f"{head}flwr-public-key: {front.header('a')}\r\nContent-Length: 9\r\n\r\nx".encode())
            assert b" 408 " in line.recv(1000)


def test_a_site_has_so_many_connections_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(connections, "MOST_OPEN", 2)
    with standing(tmp_path) as front, front.line("a") as one, front.line("a") as two:
        for line in (one, two):
            line.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            assert b"204" in line.recv(1000)
        assert _status(front, "a") == 0
        assert _status(front, "b") == 200
        front.refused("a", "more than 2 connections")


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


def test_an_address_that_connects_too_often_is_refused_and_the_others_are_not(tmp_path, monkeypatch):
    """Even one that proves a key every time: each proof costs a handshake."""
    monkeypatch.setattr(connections, "BURST", 2.0)
    monkeypatch.setattr(connections, "RATE", 0.001)
    with standing(tmp_path) as front:
        assert [_status(front) for _ in range(3)] == [200, 200, 0]
        front.refused("127.0.0.1", "connects too often")
        with socket.create_connection(front.where, source_address=("127.0.0.9", 0)) as line:
            line.sendall(b"GET / HTTP/1.1\r\n\r\n")
            front.refused("127.0.0.9", "does not speak TLS")


def test_a_flood_writes_few_lines_and_none_of_its_attempts_goes_uncounted():
    now, lines = [0.0], []
    refusals = Refusals(lines.append, lambda: now[0])
    for second in range(7200):
        now[0] = second / 2
        refusals.note("198.51.100.7", "offers no certificate")
        refusals.note(f"198.51.100.{second % 200}", "does not speak TLS")
    refusals.flush(everything=True)
    facts = [json.loads(line.removeprefix(MARK)) for line in lines]
    assert sum(fact["times"] for fact in facts) == 2 * 7200
    assert len([f for f in facts if f["why"] == "offers no certificate"]) < 15
    assert len(lines) < 500
    assert OTHER_ADDRESSES in {fact["who"] for fact in facts}
    assert len(refusals._pairs) <= MOST_PAIRS + 1
    assert parse_refusal("listening") is None
    assert parse_refusal(f"{MARK}{{") is None


def test_somebody_who_stays_away_is_a_newcomer_again():
    now, lines = [0.0], []
    refusals = Refusals(lines.append, lambda: now[0])
    for now[0] in (0.0, 0.1, 10.0):
        refusals.note("x", "y")
    now[0] = 30.0
    refusals.flush()
    refusals.note("x", "y")
    assert [json.loads(line.removeprefix(MARK))["times"] for line in lines] == [1, 2, 1]


def test_whoever_comes_too_often_waits_or_is_refused():
    now = [0.0]
    pace = RateLimit(10.0, 5.0, lambda: now[0])
    assert [pace.wait_s("a") for _ in range(5)] == [0.0] * 5
    assert [round(pace.wait_s("a"), 3) for _ in range(3)] == [0.1, 0.2, 0.3]
    assert pace.wait_s("b") == 0.0
    now[0] = 10.0
    assert [pace.allow("a") for _ in range(7)] == [True] * 5 + [False] * 2
    now[0] = 10.1
    assert [pace.allow("a") for _ in range(2)] == [True, False]
    assert all(pace.allow(str(k)) for k in range(MOST_NAMES - 1))
    assert [pace.allow(f"one too many {k}") for k in range(7)] == [True] * 5 + [False] * 2  # together
    now[0] = 20.0
    assert all(pace.allow(f"later {k}") for k in range(MOST_NAMES))
