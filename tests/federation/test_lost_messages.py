"""A message that was handed out and never arrived, because a program or a machine died in that moment, is
sent again.

Flower's server hands each message out once: a front that was killed then cost a site the round.
"""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

import httpx
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_object_tree

from tests.federation import fake  # skips where cryptography is missing
from tests.federation.test_front import PULL, PUSH, standing
from unskew.federation.coordinator import mailbox
from unskew.federation.coordinator.mailbox import FlowerChannel, Mailbox
from unskew.federation.front import connections
from unskew.federation.protocol.flower_messages import pack_message, payload
from unskew.federation.protocol.signed_messages import SignedMessage
from unskew.federation.signals import IDLE_FOLDER, IdleNodes

pytestmark = pytest.mark.flower
ASKED, ANSWER = SignedMessage("asked", b"signature", b"blob"), SignedMessage("answer", b"signature", b"blob")


class SuperLink:
    """Takes messages for one node, which then asks for more and is given nothing. A message whose number it
    knows is none.

    losing: how many it hands out to somebody who dies with them; all others are answered. working: the node
    works on the first for ever, and asks for nothing.
    """

    def __init__(self, folder, losing: int, working: bool = False):
        fake.grid_of({})  # which sets what Flower's messages want to know of their process
        self.idle, self.losing, self.working, self.taken = (
            IdleNodes(folder / IDLE_FOLDER),
            losing,
            working,
            [],
        )
        self.replies: dict[str, Message] = {}

    def PushMessages(self, request):
        ids = [head.metadata.message_id for head in request.messages_list]
        if not set(ids) - set(self.taken):  # as Flower does, which never hands out again what it knows
            return SimpleNamespace(message_ids=ids, objects_to_push=[], session_id="s")
        self.taken += ids
        for number, head in zip(ids, request.messages_list, strict=True):
            if len(self.taken) > self.losing and not self.working:
                asked = Message(pack_message(ASKED), head.metadata.dst_node_id, "train", ttl=60)
                asked.metadata.__dict__["_message_id"] = number
                reply = Message(pack_message(ANSWER), reply_to=asked)
                reply.metadata.__dict__["_message_id"] = payload(reply).object_id
                self.replies[number] = reply
        return SimpleNamespace(message_ids=ids, objects_to_push=[], session_id="s")

    def PushObject(self, request):
        raise AssertionError("nothing is lacking")

    def PullMessages(self, request):
        if not self.working:
            self.idle.note(7, IdleNodes.now())
        there = [self.replies.pop(number) for number in request.message_ids if number in self.replies]
        self.pieces = {payload(reply).object_id: payload(reply).deflate() for reply in there}
        heads = [message_to_proto(remove_content_from_message(reply)) for reply in there]
        return SimpleNamespace(
            messages_list=heads, message_object_trees=[get_object_tree(payload(reply)) for reply in there]
        )

    def PullObject(self, request):
        return SimpleNamespace(
            object_found=True, object_available=True, object_content=self.pieces[request.object_id]
        )

    def ConfirmMessageReceived(self, request):
        pass


def asked(link: SuperLink, folder, deadline_s: float = 5.0) -> dict[int, SignedMessage | str]:
    return FlowerChannel(Mailbox(link, 1, folder)).ask({7: ASKED}, "train", 1, deadline_s)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(mailbox, "_LOOK_S", 0.05)


@pytest.mark.parametrize("losing", [0, 1, 2])
def test_a_message_that_was_lost_on_its_way_is_sent_again_and_answered(tmp_path, losing):
    link = SuperLink(tmp_path, losing)
    assert asked(link, tmp_path)[7].text == "answer"
    assert len(link.taken) == losing + 1


def test_a_node_that_works_is_asked_once_whatever_it_said_before(tmp_path):
    link = SuperLink(tmp_path, 0, working=True)
    link.idle.note(7, IdleNodes.now())  # before anything was sent
    assert asked(link, tmp_path, 0.5) == {}
    assert len(link.taken) == 1


def test_a_node_that_only_says_that_it_has_nothing_is_not_sent_the_same_for_ever(tmp_path):
    link = SuperLink(tmp_path, 1000)
    assert asked(link, tmp_path, 1.5) == {}
    assert len(link.taken) == 1 + mailbox.MOST_AGAIN


def test_an_answer_that_came_before_the_node_asked_again_is_taken_and_nothing_sent_twice(tmp_path):
    """A node that has answered is idle."""
    link = SuperLink(tmp_path, 0)
    box = Mailbox(link, 1, tmp_path)
    (number,) = box.push_messages([Message(pack_message(ASKED), 7, "train", ttl=60)])
    link.idle.note(7, IdleNodes.now() + 1)
    assert box.lost([number]) == []
    end = time.monotonic() + 5
    while not (there := box.pull_messages([number])):
        assert time.monotonic() < end
    assert there[0].metadata.src_node_id == 7


def refusing(status: int):
    def refuse(request):
        httpx.Response(status, request=httpx.Request("POST", "http://x")).raise_for_status()

    return refuse


def test_a_server_that_was_away_until_the_deadline_leaves_everybody_unasked_and_the_run_goes_on(tmp_path):
    """Once it was back it refused messages whose time was over with 500, which ended the run with a
    traceback."""
    link = SuperLink(tmp_path, 0)
    link.PushMessages = refusing(500)
    assert asked(link, tmp_path, 0.3) == {}
    link.PushMessages = refusing(400)
    with pytest.raises(httpx.HTTPStatusError):
        asked(link, tmp_path, 0.3)


def question(node: int) -> bytes:
    return PullMessagesRequest(node=Node(node_id=node)).SerializeToString()


def test_the_front_notes_who_was_given_nothing_and_only_that(tmp_path, monkeypatch):
    monkeypatch.setattr(connections, "HOLD_S", 0.0)
    with standing(tmp_path) as front:
        idle = IdleNodes(front.home.folder / "flower" / IDLE_FOLDER)
        (front.home.folder / "flower").mkdir(exist_ok=True)
        before = IdleNodes.now()
        for node, status, body in ((1, 200, b""), (2, 200, b"message"), (3, 401, b"")):
            front.answer = lambda s=status, b=body: httpx.Response(
                s, stream=httpx.ByteStream(b), headers={"content-length": str(len(b))}
            )
            assert front.post(PULL, content=question(node)) == status
        front.answer = lambda: httpx.Response(200, headers={"content-length": "0"})
        assert front.post(PUSH, content=question(4)) == 200
        assert front.post(PULL, content=b"\xff") == 200, "what Flower's server would not have taken"
        assert before < idle.last(1) < IdleNodes.now()
        assert [idle.last(node) for node in (2, 3, 4)] == [-1.0] * 3
        assert os.stat(idle.folder).st_mode & 0o077 == 0


def test_what_was_noted_before_the_machine_was_started_again_is_forgotten(tmp_path):
    """The clock begins anew with it."""
    flower_folder = tmp_path / "fed" / "flower"
    flower_folder.mkdir(parents=True)
    IdleNodes(flower_folder / IDLE_FOLDER).note(1, IdleNodes.now() + 1e6)
    with standing(tmp_path):
        end = time.monotonic() + 5
        while IdleNodes(flower_folder / IDLE_FOLDER).last(1) != -1:
            assert time.monotonic() < end
            time.sleep(0.02)
