"""What makes an exchange quick: nobody asks for messages until there may be one, and each message is a single
piece."""

from __future__ import annotations

import os
import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

import httpx
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from tests.federation import fake  # skips where cryptography is missing
from tests.federation.test_front import PULL, PUSH, standing, until
from tests.federation.test_mailbox import LARGE, SuperLink, answered, pulled
from unskew.federation.coordinator.mailbox import Mailbox
from unskew.federation.front import connections
from unskew.federation.protocol.flower_messages import pack_message, payload, unpack_message
from unskew.federation.protocol.signed_messages import SignedMessage
from unskew.federation.signals import REPLIES, REQUESTS, Bell

pytestmark = pytest.mark.flower
SMALL = SignedMessage('{"k": 1}', b"signature", b"blob")


def test_a_bell_is_heard_once_by_every_listener_and_never_in_the_way(tmp_path):
    first, second = Bell(tmp_path / "bell"), Bell(tmp_path / "bell")
    assert not first.rang()
    for _ in range(20):  # also in quick succession
        second.ring()
        assert first.rang()
        assert not first.rang()
    late = Bell(tmp_path / "bell")
    assert not late.rang(), "what was rung before it listened"
    Bell(tmp_path / "no such folder/bell").ring()
    assert os.stat(tmp_path / "bell").st_mode & 0o077 == 0


@pytest.fixture
def front(tmp_path):
    with standing(tmp_path) as front:
        (front.home.folder / "flower").mkdir(exist_ok=True)
        yield front


class Asking(threading.Thread):
    """A site that asks for messages over one connection, so often, and notes when it was answered."""

    def __init__(self, front, times: int):
        super().__init__(daemon=True)
        self.front, self.times, self.answers = front, times, []
        self.client = httpx.Client(verify=front.sites["a"].tls(), timeout=8)
        self.start()

    def run(self) -> None:
        headers = {"content-type": "application/protobuf", "flwr-public-key": self.front.header("a")}
        for _ in range(self.times):
            try:
                answer = self.client.post(
                    f"https://127.0.0.1:{self.front.home.port}{PULL}", content=b"x", headers=headers
                )
                self.answers.append((answer.status_code, time.monotonic()))
            except httpx.HTTPError:
                return


def test_a_question_for_messages_waits_for_the_bell_and_then_goes_through_at_once(front, monkeypatch):
    monkeypatch.setattr(connections, "HOLD_S", 30.0)
    site = Asking(front, 3)
    until(lambda: len(site.answers) == 1)  # a new connection may have missed a ring
    time.sleep(0.3)
    assert len(front.reached) == 1, "nobody has to be asked while nothing has happened"
    for count in (2, 3):
        Bell(front.home.folder / "flower" / REQUESTS).ring()
        until(lambda count=count: len(site.answers) == count)
    assert [status for status, _ in site.answers] == [200] * 3


def test_a_question_is_passed_on_without_a_bell_too(front, monkeypatch):
    """The coordinator's process may have been killed before it rang."""
    monkeypatch.setattr(connections, "HOLD_S", 0.2)
    began = time.monotonic()
    site = Asking(front, 2)
    until(lambda: len(site.answers) == 2)
    assert site.answers[1][1] - began > 0.2


def test_nothing_is_fetched_for_a_site_that_has_left_or_was_revoked(front, monkeypatch):
    """A message is handed out once, so that one fetched for nobody would be lost."""
    monkeypatch.setattr(connections, "HOLD_S", 30.0)
    site = Asking(front, 2)
    until(lambda: len(site.answers) == 1)
    time.sleep(0.1)
    front.home.key_file("a").unlink()
    site.join(5)
    assert not site.is_alive()
    Bell(front.home.folder / "flower" / REQUESTS).ring()
    time.sleep(0.2)
    assert len(front.reached) == 1


def test_the_front_rings_when_a_site_has_sent_something(front):
    bell = Bell(front.home.folder / "flower" / REPLIES)
    assert front.post(PUSH) == 200
    until(bell.rang)


def test_a_small_message_is_one_piece_each_way_and_a_large_one_keeps_its_form(tmp_path):
    """Flower's own form is three pieces, each of which is sent and fetched by a call of its own."""
    fake.grid_of({})
    assert len(get_all_nested_objects(payload(Message(pack_message(SMALL), 1, "train")))) == 1
    assert isinstance(payload(Message(pack_message(LARGE), 1, "train")), Message)
    asked = Message(pack_message(SMALL), 7, "train", ttl=60)
    asked.metadata.__dict__["_message_id"] = "m7"
    link = SuperLink(Message(pack_message(SMALL), reply_to=asked))
    box = Mailbox(link, 1, tmp_path)
    (reply,) = pulled(box, ["m7"])
    assert unpack_message(reply.content) == SMALL
    assert (reply.metadata.reply_to_message_id, reply.metadata.src_node_id) == ("m7", 7)


def test_three_requests_take_four_calls_and_ring(tmp_path):
    fake.grid_of({})
    calls, bell = [], Bell(tmp_path / REQUESTS)

    class Link:
        def PushMessages(self, request):
            calls.append("messages")
            lacking = [tree.object_id for tree in request.message_object_trees]
            ids = [message.metadata.message_id for message in request.messages_list]
            assert lacking == ids, "Flower knows a message by the number of its piece"
            return SimpleNamespace(message_ids=ids, objects_to_push=lacking, session_id="s")

        def PushObject(self, request):
            assert not bell.rang(), "whoever comes at once must find all of it"
            calls.append("object")
            return SimpleNamespace(stored=True)

    messages = [
        Message(pack_message(SignedMessage(f"{k}", b"", b"blob")), k, "train", ttl=60) for k in (1, 2, 3)
    ]
    assert len(set(Mailbox(Link(), 1, tmp_path).push_messages(messages))) == 3
    assert calls == ["messages"] + ["object"] * 3
    assert bell.rang()


def test_a_mailbox_rests_until_a_site_has_sent_something(tmp_path):
    box, bell = Mailbox(SuperLink(), 1, tmp_path), Bell(tmp_path / REPLIES)
    began = time.monotonic()
    box.rest(0.2)
    assert 0.2 <= time.monotonic() - began < 2
    threading.Timer(0.1, bell.ring).start()
    box.rest(30)
    assert time.monotonic() - began < 10


def test_nobody_waits_until_a_message_that_has_arrived_is_deleted(tmp_path):
    """Of a large model that takes seconds."""
    link, deleting = SuperLink(answered(1)), threading.Event()
    link.ConfirmMessageReceived = lambda request: deleting.wait(20)
    box = Mailbox(link, 1, tmp_path)
    try:
        assert unpack_message(pulled(box, ["m1"], 10)[0].content).text == "node 1"
    finally:
        deleting.set()
