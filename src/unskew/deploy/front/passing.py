"""What becomes of a request: it is refused by its headers alone, or streamed to Flower's server and its answer back."""

# pyright: reportMissingImports=false
# Flower, which brings httpx, lives in an environment of its own, and types are checked in the one without it.

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any

import httpx

from unskew.deploy.bell import Bell
from unskew.deploy.front.answers import asking, is_answer
from unskew.deploy.front.connection import HEAD_BYTES, NOBODY
from unskew.deploy.front.fleet_api import ANSWERED, BODY, HEADERS, KEY, PULL, PUSHED
from unskew.deploy.front.holding import Holding
from unskew.deploy.front.news import News
from unskew.deploy.front.pace import Pace
from unskew.deploy.front.refusals import Refusals
from unskew.deploy.identity import Public
from unskew.deploy.idle import Idle
from unskew.errors import UsageError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
PATIENCE_S = 60.0
"""How long a request and its answer may take beside the time for their bytes."""
KEPT = (b"content-type", b"content-length", b"content-encoding")
"""Headers of an answer that are passed on."""
SLOWEST = 16 << 10
"""Bytes a second that must arrive, or be taken, at least."""
RATE, BURST = 100.0, 400.0
"""Requests of one site: a second, and at once. Whoever sends more is answered later."""
MOST_EACH = 8
"""Requests of one site that are with Flower's server at a time, or whose bytes are on their way there or back. Others wait."""
_log = logging.getLogger("unskew.front")


class Gone(Exception):
    """The site has left in the middle of its request."""


class Refused(Exception):
    """status: HTTP's. The text is the end of a sentence that begins with the site's name."""

    def __init__(self, status: int, text: str):
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Signs:
    """news: lets questions for messages wait. answers: rung when a site has sent something. idle: who was given nothing."""

    news: News
    answers: Bell
    idle: Idle


class Passing:
    """An ASGI application. calls: the most bytes of a body by path; server: where Flower's server is, as an URL.

    signs: between this and the coordinator's other programs.
    """

    def __init__(self, server: httpx.AsyncClient, calls: dict[str, int], refusals: Refusals, signs: Signs):
        self.server, self.calls, self.refusals, self.pace = server, calls, refusals, Pace(RATE, BURST)
        self.signs = signs
        self.holding = Holding()
        self._places = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(MOST_EACH))

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request. An answer that was begun and cannot be ended closes the connection."""
        answer, site = Answer(send), scope["state"]["site"]
        try:
            await asyncio.sleep(self.pace.wait_s(site))
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
        except (httpx.TransportError, Gone):
            await answer.only(503)  # sites try again
        except asyncio.CancelledError:  # this front is being stopped, and a site's question waits in it
            await answer.only(503)
            raise
        except Exception:
            _log.exception("a request of %s failed", site)
            await answer.only(500)

    def _size(self, scope: Message) -> int:
        """The bytes of the body, as announced. Raises Refused."""
        names, headers = [name for name, _ in scope["headers"]], dict(scope["headers"])
        path = scope["raw_path"].decode("ascii", "replace")
        if path not in self.calls or scope["query_string"]:
            raise Refused(404, "asked for something that sites may not ask for")
        strange = headers.get(b"content-type") != BODY or b"content-encoding" in headers
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEAD_BYTES:
            raise Refused(431, f"sent more than {HEAD_BYTES >> 10} KB of headers")
        if scope["method"] != "POST" or strange or len(set(names)) < len(names):  # of two, each reader takes another
            raise Refused(400, "sent a request that is not one of Flower's")
        length = headers.get(b"content-length", b"")
        if not length.isdigit() or b"transfer-encoding" in headers:
            raise Refused(411, "did not say how long its request is")
        if int(length) > self.calls[path]:
            raise Refused(413, f"sent more than {self.calls[path] >> 10} KB to {path}")
        if scope["state"]["key"] not in (NOBODY, _named_key(headers.get(KEY, b""))):
            raise Refused(401, "spoke with the key of another site, or of none")
        if not self.holding.may_speak(scope["state"]["site"], scope["state"]["place"]):
            why = "is connected from another place with the same key: a copy of its folder, or another machine"
            raise Refused(409, why)
        return int(length)

    async def _pass(self, scope: Message, size: int, limit: asyncio.Timeout, receive: Receive, answer: Answer) -> None:
        path, content = scope["raw_path"].decode("ascii"), _body(receive)
        if path != PUSHED:  # which are too large to be held here
            content = b"".join([piece async for piece in content])
        if isinstance(content, bytes) and path == ANSWERED and not is_answer(content):
            raise Refused(400, "announced something that is no answer of its own")
        if path == PULL and not await self.signs.news.wait(scope["state"]["heard"], receive):
            raise Gone
        async with self._places[scope["state"]["site"]]:
            await self._pass_on(scope, size, limit, content, answer)

    async def _pass_on(
        self, scope: Message, size: int, limit: asyncio.Timeout, content: bytes | AsyncIterator[bytes], answer: Answer
    ) -> None:
        headers = [(name, value) for name, value in scope["headers"] if name in HEADERS]
        path = scope["raw_path"].decode("ascii")
        asked = Idle.now()
        request = self.server.build_request("POST", path, headers=headers, content=content)
        response = await self.server.send(request, stream=True)
        if path == PUSHED:
            self.signs.answers.ring()
        try:
            length = int(response.headers.get("content-length", 0))
            if isinstance(content, bytes) and path == PULL and response.status_code == 200 and not length:
                self.signs.idle.note(asking(content), asked)
            limit.reschedule(asyncio.get_running_loop().time() + PATIENCE_S + (size + length) / SLOWEST)
            kept = [(n.lower(), v) for n, v in response.headers.raw if n.lower() in KEPT]
            await answer.begin(response.status_code, kept)
            async for piece in response.aiter_raw():
                await answer.go_on(piece)
            await answer.end()
        finally:
            await response.aclose()


class Answer:
    """An answer to one request, of which nothing has been sent yet."""

    def __init__(self, send: Send):
        self.send, self.begun = send, False

    async def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.begun = True
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def go_on(self, piece: bytes) -> None:
        await self.send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self) -> None:
        await self.send({"type": "http.response.body"})

    async def only(self, status: int) -> None:
        """Send nothing but a status and the time, and close the connection unless all is well."""
        if self.begun:
            return
        headers = [(b"date", formatdate(usegmt=True).encode()), (b"content-length", b"0")]
        await self.begin(status, headers[: 1 if status == 204 else 2] + [(b"connection", b"close")] * (status != 204))
        await self.end()


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    """The body as it arrives. Raises Gone if the site leaves before its end."""
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise Gone
        more = message["more_body"]
        if message["body"]:
            yield message["body"]


def _named_key(header: bytes) -> str:
    """The fingerprint of the key in Flower's header; "" if there is none."""
    try:
        return Public.from_pem(base64.b64decode(header, validate=True).decode()).fingerprint
    except (binascii.Error, ValueError, UsageError):
        return ""
