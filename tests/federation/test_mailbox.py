"""Messages of a run at the SuperLink: pieces, lost messages, senders that lie or stop, and waiting."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")


pytest.importorskip("cryptography", reason="pip install 'unskew[flower]'")

import os
import random
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import httpx
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from tests.federation import fake  # skips where cryptography is missing
from tests.federation.test_front import PULL, standing, until
from unskew.federation.coordinator import mailbox
from unskew.federation.coordinator.mailbox import Mailbox
from unskew.federation.front import connections
from unskew.federation.protocol import flower_messages
from unskew.federation.protocol.flower_messages import (
    HEAD,
    SMALL,
    pack_message,
    payload,
    record,
    unpack_message,
)
from unskew.federation.protocol.signed_messages import SignedMessage
from unskew.federation.signals import IDLE_FOLDER, REPLIES, REQUESTS, Bell, IdleNodes

pytestmark = pytest.mark.flower
LARGE = SignedMessage("{}", b"signature", bytes(SMALL + 1))


class SuperLink:
    """Answers a mailbox's calls with the replies of nodes. missing: pieces that have not been sent yet."""

    def __init__(self, *replies: Message):
        self.replies, self.pieces, self.missing = list(replies), {}, set()
        for reply in replies:
            reply.metadata.__dict__["_message_id"] = flower_messages.payload(reply).object_id
            self.pieces |= {
                n: piece.deflate()
                for n, piece in get_all_nested_objects(flower_messages.payload(reply)).items()
            }

    def PullMessages(self, request):
        replies, self.replies = self.replies, []
        heads = [message_to_proto(remove_content_from_message(reply)) for reply in replies]
        trees = [get_object_tree(flower_messages.payload(reply)) for reply in replies]
        return SimpleNamespace(messages_list=heads, message_object_trees=trees)

    def PullObject(self, request):
        there = request.object_id not in self.missing
        content = self.pieces[request.object_id] if there else b""
        return SimpleNamespace(object_found=True, object_available=there, object_content=content)

    def ConfirmMessageReceived(self, request):
        pass


def answered(node: int) -> Message:
    fake.grid_of({})  # which sets what Flower's messages want to know of their process
    asked = Message(pack_message(LARGE), node, "train", ttl=60)
    asked.metadata.__dict__["_message_id"] = f"m{node}"
    return Message(pack_message(SignedMessage(f"node {node}", b"", LARGE.blob)), reply_to=asked)


def answered_at_once(folder: Path, *numbers: str) -> Callable[[list[Message]], list[str]]:
    """Instead of sending messages: their numbers, and the bell that the front rings when a site has
    answered."""

    def push(messages: list[Message]) -> list[str]:
        Bell(folder / REPLIES).ring()
        return list(numbers)

    return push


def pulled(box: Mailbox, numbers: list[str], seconds: float = 10.0) -> dict[str, SignedMessage | str]:
    end, replies = time.monotonic() + seconds, {}
    while len(replies) < len(numbers):
        assert time.monotonic() < end
        replies |= box.pull_messages(numbers)
        time.sleep(0.01)
    return replies


def test_a_site_that_stops_in_the_middle_holds_nobody_up_and_is_named(tmp_path, monkeypatch):
    """Or whoever announces a reply and never sends it would keep a round open for three minutes."""
    monkeypatch.setattr(flower_messages, "STALLED_S", 3.0)
    stalled = answered(1)
    link = SuperLink(stalled, answered(2))
    link.missing = set(get_all_nested_objects(stalled)) - set(get_all_nested_objects(answered(2)))
    box = Mailbox(link, 1, tmp_path)
    box.push_messages = answered_at_once(tmp_path, "m1", "m2")
    requests = {1: LARGE, 2: LARGE}
    assert list(box.ask(requests, "train", 1, 2.0)) == [2]
    assert "its sender has stopped sending it" in pulled(box, ["m1"])["m1"]


def test_a_reply_that_is_no_message_of_flowers_is_told_as_its_senders_failure(tmp_path):
    garbled = answered(1)
    link = SuperLink(garbled, answered(2))
    for number in set(get_all_nested_objects(garbled)) - set(get_all_nested_objects(answered(2))):
        link.pieces[number] = link.pieces[number].partition(b"\x00")[0] + b"\x00" + b"\xff" * 5000
    box = Mailbox(link, 1, tmp_path)
    box.push_messages = answered_at_once(tmp_path, "m1", "m2")
    replies = box.ask({1: LARGE, 2: LARGE}, "train", 1, 5.0)
    assert isinstance(replies[2], SignedMessage)
    assert isinstance(replies[1], str)
    assert len(replies[1]) < 300


def test_a_reply_answers_the_request_that_the_server_says(tmp_path):
    forged = answered(1)
    link = SuperLink(forged, answered(2))
    heads, link_is_empty = link.PullMessages(None), link.PullMessages(None)
    heads.messages_list[0].metadata.reply_to_message_id = "m3"
    handed_out = iter([heads])
    link.PullMessages = lambda request: next(handed_out, link_is_empty)
    box = Mailbox(link, 1, tmp_path)
    assert pulled(box, ["m2", "m3"]).keys() == {"m2", "m3"}


def transfer(size: int = 30 << 20) -> tuple[Message, dict[str, bytes], bytes]:
    """A message with so many random bytes of tensors, its pieces by number, and the bytes."""
    fake.grid_of({})
    blob = random.Random(0).randbytes(size)
    message = Message(pack_message(SignedMessage("{}", b"signature", blob)), 1, "train", ttl=60)
    message.metadata.__dict__["_message_id"] = message.object_id
    return message, {n: piece.deflate() for n, piece in get_all_nested_objects(message).items()}, blob


def test_a_transfer_that_is_cut_goes_on_where_it_was(tmp_path):
    message, content, blob = transfer()
    pulled, good = [], 6

    def pull(number: str) -> bytes:
        if len(pulled) == good:
            raise ConnectionError
        pulled.append(number)
        return content[number]

    arrival = flower_messages.Arrival(MessageProto(), get_object_tree(message))
    with pytest.raises(ConnectionError):
        arrival.go_on(pull)
    good = len(content) + 1
    assert unpack_message(arrival.go_on(pull).content).blob == blob
    assert len(pulled) == len(content)


ASKED, ANSWER = SignedMessage("asked", b"signature", b"blob"), SignedMessage("answer", b"signature", b"blob")


class LossySuperLink(SuperLink):
    """Takes messages for one node, which then asks for more and is given nothing. A message whose number it
    knows is none.

    losing: how many it hands out to somebody who dies with them; all others are answered.
    """

    def __init__(self, folder, losing: int):
        super().__init__()
        fake.grid_of({})  # which sets what Flower's messages want to know of their process
        self.idle, self.losing, self.taken = IdleNodes(folder / IDLE_FOLDER), losing, []
        self.known: dict[str, Message] = {}

    def PushMessages(self, request):
        ids = [head.metadata.message_id for head in request.messages_list]
        if not set(ids) - set(self.taken):  # as Flower does, which never hands out again what it knows
            return SimpleNamespace(message_ids=ids, objects_to_push=[], session_id="s")
        self.taken += ids
        for number, head in zip(ids, request.messages_list, strict=True):
            if len(self.taken) > self.losing:
                asked = Message(pack_message(ASKED), head.metadata.dst_node_id, "train", ttl=60)
                asked.metadata.__dict__["_message_id"] = number
                reply = Message(pack_message(ANSWER), reply_to=asked)
                reply.metadata.__dict__["_message_id"] = payload(reply).object_id
                self.known[number] = reply
        return SimpleNamespace(message_ids=ids, objects_to_push=[], session_id="s")

    def PushObject(self, request):
        raise AssertionError("nothing is lacking")

    def PullMessages(self, request):
        self.idle.note(7, IdleNodes.now())
        there = SuperLink(*(self.known.pop(n) for n in request.message_ids if n in self.known))
        self.pieces = self.pieces | there.pieces
        return there.PullMessages(request)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(mailbox, "_LOOK_S", 0.05)


@pytest.mark.parametrize("losing", [0, 1, 2])
def test_a_message_that_was_lost_on_its_way_is_sent_again_and_answered(tmp_path, losing):
    link = LossySuperLink(tmp_path, losing)
    assert Mailbox(link, 1, tmp_path).ask({7: ASKED}, "train", 1, 5.0)[7].text == "answer"
    assert len(link.taken) == losing + 1


def refusing(status: int):
    def refuse(request):
        httpx.Response(status, request=httpx.Request("POST", "http://x")).raise_for_status()

    return refuse


def test_a_server_that_was_away_until_the_deadline_leaves_everybody_unasked_and_the_run_goes_on(tmp_path):
    """Once it was back it refused messages whose time was over with 500, which ended the run with a
    traceback."""
    fake.grid_of({})
    link = SuperLink()
    link.PushMessages = refusing(500)
    assert Mailbox(link, 1, tmp_path).ask({7: LARGE}, "train", 1, 0.3) == {}
    link.PushMessages = refusing(400)
    with pytest.raises(httpx.HTTPStatusError):
        Mailbox(link, 1, tmp_path).ask({7: LARGE}, "train", 1, 0.3)


def answer(content: RecordDict) -> Message:
    fake.grid_of({})
    asked = Message(pack_message(LARGE), 1, "train", ttl=60)
    asked.metadata.__dict__["_message_id"] = "m1"
    return Message(content, reply_to=asked)


def repeated(piece: bytes, times: int) -> RecordDict:
    """One piece, of which the list of an array's pieces says that it comes so often."""
    array = flower_messages.array(b"x" * 10)
    one = ArrayChunk(memoryview(piece))
    array.__dict__["_chunks"] = [(one.object_id, one)] * times
    return RecordDict({HEAD: ConfigRecord({"text": "{}", "signature": b""}), "blob": record({"blob": array})})


@pytest.mark.parametrize(
    ("piece", "times", "why"),
    [
        (bytes(1 << 20), 50, "E303 its tensors have more than the 10 bytes expected"),
        (b"", 5_000, "E303 its tensors are in more than 4,096 pieces"),
    ],
)
def test_one_piece_that_is_named_over_and_over_is_not_fetched_over_and_over(tmp_path, piece, times, why):
    """8 MB that were sent once became 8 GB at the coordinator; pieces of nothing never ended."""
    link = SuperLink(answer(repeated(piece, times)))
    box, calls = Mailbox(link, 1, tmp_path), []  # type: ignore[arg-type]
    pull, box.most = link.PullObject, 3 << 20
    link.PullObject = lambda request: [calls.append(request.object_id), pull(request)][1]
    assert pulled(box, ["m1"]) == {"m1": why}
    # what names the pieces, those up to one too many, and those on their way
    assert len(calls) <= 5 + 4


def test_an_array_that_many_records_name_is_held_once():
    """10 MB that were sent became 2 GB in memory, before the signature was read."""
    fake.grid_of({})
    array = flower_messages.array(bytes(6 << 20))  # in two pieces, which are joined
    records = {HEAD: ConfigRecord({})} | {f"r{k}": record({f"n{k}": array}) for k in range(20)}
    message = Message(RecordDict(records), 1, "train", ttl=60)
    content = {n: piece.deflate() for n, piece in get_all_nested_objects(message).items()}
    head = message_to_proto(remove_content_from_message(message))
    arrival = flower_messages.Arrival(head, get_object_tree(message))
    tracemalloc.start()
    arrived = arrival.go_on(content.__getitem__)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(arrived.content.array_records) == 20
    assert most < 4 * (6 << 20)


def test_a_message_is_held_in_memory_only_as_far_as_an_honest_one_goes(tmp_path, monkeypatch):
    monkeypatch.setattr(flower_messages, "MOST_TEXT", 1 << 20)
    records = {f"r{k}": ConfigRecord({"x": bytes([k]) * 400_000}) for k in range(9)}
    link = SuperLink(answer(RecordDict(records)))
    replies = pulled(Mailbox(link, 1, tmp_path), ["m1"])  # type: ignore[arg-type]
    assert replies == {"m1": "E303 it holds more than 1 MB beside its tensors"}


def test_a_piece_now_and_then_does_not_keep_a_fetcher_beyond_the_deadline(tmp_path):
    box = Mailbox(SuperLink(answered(1)), 1, tmp_path)  # type: ignore[arg-type]
    box._until["m1"] = time.monotonic() - 1
    assert "it came too late to be of use" in pulled(box, ["m1"])["m1"]


SMALL_MESSAGE = SignedMessage('{"k": 1}', b"signature", b"blob")


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


def test_a_small_message_is_one_piece_each_way_and_a_large_one_keeps_its_form(tmp_path):
    """Flower's own form is three pieces, each of which is sent and fetched by a call of its own."""
    fake.grid_of({})
    assert len(get_all_nested_objects(payload(Message(pack_message(SMALL_MESSAGE), 1, "train")))) == 1
    assert isinstance(payload(Message(pack_message(LARGE), 1, "train")), Message)
    asked = Message(pack_message(SMALL_MESSAGE), 7, "train", ttl=60)
    asked.metadata.__dict__["_message_id"] = "m7"
    link = SuperLink(Message(pack_message(SMALL_MESSAGE), reply_to=asked))
    box = Mailbox(link, 1, tmp_path)
    assert pulled(box, ["m7"]) == {"m7": SMALL_MESSAGE}
