"""What one admitted site may hold up or make up at the front, without which others would wait or be asked."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

import httpx
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.proto.node_pb2 import Node

from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from unskew.federation.front.access import Refusals
from unskew.federation.front.connections import NOBODY, LastRing, MessageWait
from unskew.federation.front.proxy import CALLS, MOST_EACH, PUSH_OBJECT, Proxy, Signals, is_answer
from unskew.federation.signals import Bell, IdleNodes

pytestmark = pytest.mark.flower


class Standing:
    """A front's `Proxy` before a server that answers nobody until it is told to. reached: whose requests it
    has."""

    def __init__(self, folder):
        self.reached, self.go = [], asyncio.Event()
        server = httpx.AsyncClient(base_url="http://x", transport=httpx.MockTransport(self._answer))
        signs = Signals(
            MessageWait(Bell(folder / "bell")), Bell(folder / "answers"), IdleNodes(folder / "idle")
        )
        self.passing = Proxy(server, CALLS, Refusals(lambda line: None), signs)
        self.said: list[int] = []

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        self.reached.append((await request.aread()).decode())
        await self.go.wait()
        return httpx.Response(200)

    async def call(self, site: str, method: str = "POST", path: str = PUSH_OBJECT) -> None:
        headers = [(b"content-type", b"application/protobuf"), (b"content-length", b"1")] * (method == "POST")
        state = {"site": site, "key": NOBODY, "heard": LastRing(), "place": 0}
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


def test_questions_for_the_time_are_paced_as_everything_else(tmp_path):
    """They reach nobody, so they were free: thousands a second from one site kept the front busy."""

    async def play():
        front, paced = Standing(tmp_path), []
        front.passing.pace.wait_s = lambda site: paced.append(site) or 0.0  # type: ignore[method-assign]
        await front.call("a", "GET", "/")
        await front.call("a", "GET", "/docs")
        assert paced == ["a", "a"]
        assert front.said == [204, 404]

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
