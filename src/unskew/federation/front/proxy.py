"""The front's process: `python -m unskew.federation.front.proxy FOLDER BIND`, run by `unskew serve`.

FOLDER: the federation's folder. BIND: the address to listen on, with the federation's port. A request is
refused by its headers alone, or streamed to Flower's server and the answer back.

A site may make a few calls of Flower's fleet API, each with a limit on the bytes of its body. All other
calls of Flower's server are for operators and its own programs. A site fetches no code, so the calls for
code (`get-fab`, `get-run`) are not allowed.

An announcement must be one answer of this site, with the list of pieces that it names. Flower's server
accepts more: requests that a site invents for another site or for itself, and any number of further lists
of pieces, each of which it would store.
"""

# pyright: reportMissingImports=false
# Flower lives in an environment of its own, and types are checked in the one without it.

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import logging
import signal
import socket
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any

import httpx
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from google.protobuf.message import DecodeError

from unskew.errors import UnskewError, UsageError
from unskew.federation.addresses import host_port, listen, socket_address
from unskew.federation.front.access import Members, Refusals, SiteHolders
from unskew.federation.front.connections import HEAD_BYTES, Connections, Listener, MessageWait
from unskew.federation.programs import configure_malloc
from unskew.federation.protocol.signed_messages import PublicKey
from unskew.federation.signals import IDLE_FOLDER, REPLIES, REQUESTS, Bell, IdleNodes
from unskew.federation.tickets import Coordinator


def is_answer(content: bytes) -> bool:
    """True for an announcement of one answer of the node that sends it."""
    try:
        request = PushMessagesRequest.FromString(content)
    except DecodeError:
        return False
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        return False
    facts = request.messages_list[0].metadata
    named = facts.message_id == request.message_object_trees[0].object_id
    return bool(facts.reply_to_message_id) and named and facts.src_node_id == request.node.node_id


_SMALL_BODY = 64 << 10

PULL_MESSAGES, PUSH_MESSAGES, PUSH_OBJECT = (
    "/v1/fleet/pull-messages",
    "/v1/fleet/push-messages",
    "/v1/fleet/push-object",
)
"""The requests for messages, the calls that announce an answer with a list of its pieces, and those that
each bring one."""
CALLS = {
    "/v1/fleet/activate-node": _SMALL_BODY,
    "/v1/fleet/send-node-heartbeat": _SMALL_BODY,
    PULL_MESSAGES: _SMALL_BODY,
    "/v1/fleet/pull-object": _SMALL_BODY,
    "/v1/fleet/confirm-message-received": _SMALL_BODY,
    # the list of 8 GB in pieces of 2 MB has 300 KB; Flower's database is locked while it is read
    PUSH_MESSAGES: 512 << 10,
    PUSH_OBJECT: 8 << 20,  # Flower cuts tensors into pieces of 5 MB
    "/v1/fleet/deactivate-node": _SMALL_BODY,
}
BODY_TYPE = b"application/protobuf"
KEY_HEADER = b"flwr-public-key"
REQUEST_HEADERS = {b"content-type", b"accept", b"content-length", KEY_HEADER, b"flwr-timestamp"} | {
    b"flwr-signature",
    b"flwr-package-name",
    b"flwr-package-version",
    b"flwr-component-name",
}
"""Headers that are passed on; all others are dropped."""
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
PATIENCE_S = 60.0
"""Seconds for a request and its answer, in addition to the time for their bytes."""
RESPONSE_HEADERS = (b"content-type", b"content-length", b"content-encoding")
SLOWEST = 16 << 10
"""Smallest transfer rate in bytes per second."""
MOST_EACH = 8
"""Requests of one site in transfer or at Flower's server at a time. Others wait."""
_log = logging.getLogger("unskew.front")


class SiteLeft(Exception):
    """The site has left in the middle of its request."""


class Refused(Exception):
    """A refused request. status: of HTTP. The text follows the site's name in a sentence."""

    def __init__(self, status: int, text: str):
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Signals:
    """news: lets requests for messages wait. answers: rung at a site's answer. idle: nodes without any."""

    news: MessageWait
    answers: Bell
    idle: IdleNodes


class Proxy:
    """An ASGI application. server: client of Flower's server; signs: signals between the front and the
    coordinator's other programs.
    """

    def __init__(self, server: httpx.AsyncClient, refusals: Refusals, signs: Signals):
        self.server, self.refusals, self.signs = server, refusals, signs
        self.holding = SiteHolders()
        self._places = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(MOST_EACH))

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request. An answer that was begun and cannot be completed closes the connection."""
        answer, site = Answer(send), scope["state"]["site"]
        try:
            if (scope["method"], scope["raw_path"]) == ("GET", b"/"):
                await answer.only(204)  # for a site that checks its connection and its clock
                return
            size = self._size(scope)
            async with asyncio.timeout(PATIENCE_S + size / SLOWEST) as limit:
                await self._pass(scope, size, limit, receive, answer)
        except Refused as refusal:
            self.refusals.note(site, str(refusal))
            await answer.only(refusal.status)
        except TimeoutError:
            self.refusals.note(site, "sent a request, or took its answer, too slowly")
            await answer.only(408)
        except (httpx.TransportError, SiteLeft):
            await answer.only(503)  # sites try again
        except asyncio.CancelledError:  # this front is being stopped, and a site's question waits in it
            await answer.only(503)
            raise
        except Exception:
            _log.exception("a request of %s failed", site)
            await answer.only(500)

    def _size(self, scope: Message) -> int:
        """The announced bytes of the body. Raises Refused."""
        names, headers = [name for name, _ in scope["headers"]], dict(scope["headers"])
        path = scope["raw_path"].decode("ascii", "replace")
        if path not in CALLS or scope["query_string"]:
            raise Refused(404, "asked for something that sites may not ask for")
        is_foreign = headers.get(b"content-type") != BODY_TYPE or b"content-encoding" in headers
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEAD_BYTES:
            raise Refused(431, f"sent more than {HEAD_BYTES >> 10} KB of headers")
        is_ambiguous = len(set(names)) < len(names)  # of two, each reader takes another
        if scope["method"] != "POST" or is_foreign or is_ambiguous:
            raise Refused(400, "sent a request that is not one of Flower's")
        length = headers.get(b"content-length", b"")
        if not length.isdigit() or b"transfer-encoding" in headers:
            raise Refused(411, "did not say how long its request is")
        if int(length) > CALLS[path]:
            raise Refused(413, f"sent more than {CALLS[path] >> 10} KB to {path}")
        if scope["state"]["key"] != _named_key(headers.get(KEY_HEADER, b"")):
            raise Refused(401, "spoke with the key of another site, or of none")
        if not self.holding.may_speak(scope["state"]["site"], scope["state"]["place"]):
            why = "is connected from another place with the same key"
            raise Refused(409, f"{why}: a copy of its folder, or another machine")
        return int(length)

    async def _pass(
        self, scope: Message, size: int, limit: asyncio.Timeout, receive: Receive, answer: Answer
    ) -> None:
        path, content = scope["raw_path"].decode("ascii"), _body(receive)
        if path != PUSH_OBJECT:  # which are too large to be held here
            content = b"".join([piece async for piece in content])
        if isinstance(content, bytes) and path == PUSH_MESSAGES and not is_answer(content):
            raise Refused(400, "announced something that is no answer of its own")
        if path == PULL_MESSAGES and not await self.signs.news.wait(scope["state"]["heard"], receive):
            raise SiteLeft
        async with self._places[scope["state"]["site"]]:
            await self._pass_on(scope, size, limit, content, answer)

    async def _pass_on(
        self,
        scope: Message,
        size: int,
        limit: asyncio.Timeout,
        content: bytes | AsyncIterator[bytes],
        answer: Answer,
    ) -> None:
        headers = [(name, value) for name, value in scope["headers"] if name in REQUEST_HEADERS]
        path = scope["raw_path"].decode("ascii")
        asked = IdleNodes.now()
        request = self.server.build_request("POST", path, headers=headers, content=content)
        response = await self.server.send(request, stream=True)
        if path == PUSH_OBJECT:
            self.signs.answers.ring()
        try:
            length = int(response.headers.get("content-length", 0))
            is_empty = response.status_code == 200 and not length
            if isinstance(content, bytes) and path == PULL_MESSAGES and is_empty:
                with contextlib.suppress(DecodeError):
                    self.signs.idle.note(PullMessagesRequest.FromString(content).node.node_id, asked)
            limit.reschedule(asyncio.get_running_loop().time() + PATIENCE_S + (size + length) / SLOWEST)
            kept = [(n.lower(), v) for n, v in response.headers.raw if n.lower() in RESPONSE_HEADERS]
            await answer.begin(response.status_code, kept)
            async for piece in response.aiter_raw():
                await answer.send({"type": "http.response.body", "body": piece, "more_body": True})
            await answer.send({"type": "http.response.body"})
        finally:
            await response.aclose()


class Answer:
    """The answer to one request."""

    def __init__(self, send: Send):
        self.send, self.begun = send, False

    async def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Send the status and the headers."""
        self.begun = True
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def only(self, status: int) -> None:
        """Send only a status and the time, and close the connection unless the status is 204."""
        if self.begun:
            return
        headers = [(b"date", formatdate(usegmt=True).encode()), (b"content-length", b"0")]
        await self.begin(status, headers[:1] if status == 204 else [*headers, (b"connection", b"close")])
        await self.send({"type": "http.response.body"})


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    """The body as it arrives. Raises SiteLeft if the site leaves before its end."""
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise SiteLeft
        more = message["more_body"]
        if message["body"]:
            yield message["body"]


def _named_key(header: bytes) -> str:
    """The fingerprint of the key in Flower's header; "" if there is none."""
    try:
        return PublicKey.from_pem(base64.b64decode(header, validate=True).decode()).fingerprint
    except (binascii.Error, ValueError, UsageError):
        return ""


REFUSED = "refused"
"""The first word of lines about refusals, which `unskew serve` prints."""
LOOK_S = 0.5
"""Seconds between readings of the admitted keys, after which a removed key is excluded at the latest."""
MOST_UNREADABLE = 6
"""Readings that may fail in a row before the front ends, because a removed key would not be
noticed."""
MOST_AT_ONCE = 64

KEEPALIVE_S = 2.0
"""Seconds for which an idle connection to Flower's server is reused. The server closes it after 5 s,
unannounced."""


async def serve(
    home: Coordinator, listener: socket.socket, server: httpx.AsyncClient, say: Callable[[str], None]
) -> None:
    """Serve until cancelled. server: client of Flower's server. say: receives a line for each refusal, which
    the federation's journal records, too."""

    def refused(who: str, why: str, times: int) -> None:
        say(f"{REFUSED} {who}: {why}" + (f" ({times} times)" if times != 1 else ""))
        try:
            home.record(("refused", {"who": who, "why": why, "times": times}))
        except (UnskewError, OSError) as error:  # a disk that strangers have filled must not end the server
            say(f"{REFUSED} attempts are not recorded: {error}")

    refusals, members, flower = Refusals(refused), Members(home), home.folder / "flower"
    news, answers = MessageWait(Bell(flower / REQUESTS)), Bell(flower / REPLIES)
    signs = Signals(news, answers, IdleNodes(flower / IDLE_FOLDER))
    signs.idle.forget()
    shared = Connections(members, refusals, Proxy(server, refusals, signs))
    accepting, unreadable = asyncio.create_task(Listener(listener, shared).keep_open()), 0
    bell_task = asyncio.create_task(signs.news.listen())
    try:
        while not accepting.done():
            try:
                if members.read():
                    shared.expel()
                unreadable = 0
            except (OSError, UnskewError):  # a command may be writing the folder
                unreadable += 1
                if unreadable >= MOST_UNREADABLE:
                    raise
            refusals.flush()
            await asyncio.sleep(LOOK_S)
        await accepting
    finally:
        accepting.cancel()
        bell_task.cancel()
        refusals.flush(everything=True)


def flower_client(home: Coordinator) -> httpx.AsyncClient:
    """A client of Flower's server at the federation's socket."""
    limits = httpx.Limits(max_connections=MOST_AT_ONCE, keepalive_expiry=KEEPALIVE_S)
    transport = httpx.AsyncHTTPTransport(uds=socket_address(home.superlink), limits=limits)
    return httpx.AsyncClient(base_url="http://superlink", transport=transport, timeout=60)


def _say(text: str) -> None:
    print(text, flush=True)


async def main(home: Coordinator, listener: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT."""
    async with flower_client(home) as server:
        task = asyncio.create_task(serve(home, listener, server, _say))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task


if __name__ == "__main__":
    configure_malloc()
    # `Refusals` reports everything that sites can cause
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    folder, bind = sys.argv[1:]
    federation = Coordinator.open(Path(folder))
    try:
        listener_socket = listen(bind, federation.port)
    except OSError as error:
        address = host_port(bind, federation.port)
        sys.exit(f"E507 the server cannot listen at {address}: {error.strerror or error}.")
    with listener_socket:
        listener_socket.setblocking(False)
        _say(f"listening at {host_port(bind, federation.port)}")
        asyncio.run(main(federation, listener_socket))
