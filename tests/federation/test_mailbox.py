"""A run's messages at the SuperLink: pieces that are still on their way, and senders that stop in the
middle."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

import httpx
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError

from tests.federation import fake  # skips where cryptography is missing
from unskew.errors import Paused, UnskewError
from unskew.federation.coordinator import mailbox
from unskew.federation.coordinator.mailbox import FlowerChannel, Mailbox
from unskew.federation.protocol import flower_messages
from unskew.federation.protocol.flower_messages import pack_message, unpack_message
from unskew.federation.protocol.signed_messages import SMALL, SignedMessage, all_bytes
from unskew.federation.signals import REPLIES, Bell

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


def pulled(box: Mailbox, numbers: list[str], seconds: float = 10.0) -> list[Message]:
    end, messages = time.monotonic() + seconds, []
    while len(messages) < len(numbers):
        assert time.monotonic() < end
        messages += box.pull_messages(numbers)
        time.sleep(0.01)
    return messages


def test_small_messages_are_one_piece_and_large_ones_keep_theirs():
    fake.grid_of({})
    for blob, count in ((b"blob", 3), (b"", 3), (LARGE.blob, 7)):
        sealed = SignedMessage("{}", b"signature", blob)
        back = unpack_message(pack_message(sealed))
        assert (back.text, back.signature, all_bytes(back.blob)) == (sealed.text, sealed.signature, blob)
        assert len(get_all_nested_objects(Message(pack_message(sealed), 1, "train"))) == count


def test_a_reply_whose_pieces_still_come_is_fetched_as_they_come(tmp_path):
    """Flower's Grid looks again after a second, and each time later."""
    link = SuperLink(answered(1))
    link.missing = set(link.pieces)
    box = Mailbox(link, 1, tmp_path)
    threading.Timer(0.2, link.missing.clear).start()
    began = time.monotonic()
    (reply,) = pulled(box, ["m1"])
    assert unpack_message(reply.content).text == "node 1"
    assert time.monotonic() - began < 0.9


def test_a_site_that_stops_in_the_middle_holds_nobody_up_and_is_named(tmp_path, monkeypatch):
    """Or whoever announces a reply and never sends it would keep a round open for three minutes."""
    monkeypatch.setattr(flower_messages, "STALLED_S", 1.5)
    stalled = answered(1)
    link = SuperLink(stalled, answered(2))
    link.missing = set(get_all_nested_objects(stalled)) - set(get_all_nested_objects(answered(2)))
    box = Mailbox(link, 1, tmp_path)
    box.push_messages = answered_at_once(tmp_path, "m1", "m2")
    requests = {1: LARGE, 2: LARGE}
    assert list(FlowerChannel(box).ask(requests, "train", 1, 0.8)) == [2]
    (late,) = pulled(box, ["m1"])
    assert "its sender has stopped sending it" in late.error.reason


def test_a_sender_is_given_up_only_when_nothing_comes_for_a_while(monkeypatch):
    clock, asked = [0.0], []
    monkeypatch.setattr(flower_messages.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(
        flower_messages.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds)
    )

    def pull(object_id: str) -> bytes:
        asked.append(clock[0])
        if (object_id == "late" and len(asked) < 8) or object_id == "never":
            raise ObjectUnavailableError(object_id)
        return b"piece"

    patient = flower_messages.retry_pull(pull)
    for clock[0] in (10.0, 20.0, 30.0):
        assert patient("there") == b"piece"
    assert patient("late") == b"piece"
    assert 30 < clock[0] < 32
    began = clock[0]
    with pytest.raises(ObjectPullError, match="stopped sending"):
        patient("never")
    assert flower_messages.STALLED_S < clock[0] - began < flower_messages.STALLED_S + 1


def test_a_reply_that_is_no_message_of_flowers_is_told_as_its_senders_failure(tmp_path):
    """N14: an exception that nobody expected of Flower's parsers ended the run of all."""
    garbled = answered(1)
    link = SuperLink(garbled, answered(2))
    for number in set(get_all_nested_objects(garbled)) - set(get_all_nested_objects(answered(2))):
        link.pieces[number] = link.pieces[number].partition(b"\x00")[0] + b"\x00" + b"\xff" * 5000
    box = Mailbox(link, 1, tmp_path)
    box.push_messages = answered_at_once(tmp_path, "m1", "m2")
    replies = FlowerChannel(box).ask({1: LARGE, 2: LARGE}, "train", 1, 5.0)
    assert isinstance(replies[2], SignedMessage)
    assert isinstance(replies[1], str)
    assert len(replies[1]) < 300


def test_a_reply_that_only_fails_when_it_is_unpacked_is_told_too(tmp_path, monkeypatch):
    """N14: and so did what is parsed only when it is read."""

    def failing(content):
        raise RecursionError("x" * 5000)

    monkeypatch.setattr(mailbox, "unpack_message", failing)
    link = SuperLink(answered(1))
    box = Mailbox(link, 1, tmp_path)
    box.push_messages = answered_at_once(tmp_path, "m1")
    reply = FlowerChannel(box).ask({1: LARGE}, "train", 1, 5.0)[1]
    assert str(reply).startswith("its reply cannot be read (xxx")
    assert len(str(reply)) < 300


def test_a_message_whose_head_cannot_be_read_stops_nobody(tmp_path):
    """N14: it was read outside the guard, so that one site's message ended the run of all."""
    heads = SuperLink(answered(1), answered(2))
    response = heads.PullMessages(None)
    response.messages_list[0].metadata.message_type = "no such kind"
    response.messages_list[0].content.SetInParent()
    heads.PullMessages = lambda request: response
    with pytest.raises(Exception, match="no such kind"):
        message_from_proto(response.messages_list[0])
    box = Mailbox(heads, 1, tmp_path)
    box.push_messages = answered_at_once(tmp_path, "m1", "m2")
    replies = FlowerChannel(box).ask({1: LARGE, 2: LARGE}, "train", 1, 5.0)
    assert isinstance(replies[2], SignedMessage)


def test_a_reply_answers_the_request_that_the_server_says(tmp_path):
    """N2: its sender could have written another site's into it."""
    forged = answered(1)
    link = SuperLink(forged, answered(2))
    heads, link_is_empty = link.PullMessages(None), link.PullMessages(None)
    heads.messages_list[0].metadata.reply_to_message_id = "m3"
    handed_out = iter([heads])
    link.PullMessages = lambda request: next(handed_out, link_is_empty)
    box = Mailbox(link, 1, tmp_path)
    assert {m.metadata.reply_to_message_id for m in pulled(box, ["m2", "m3"])} == {"m2", "m3"}


@pytest.mark.parametrize(
    ("status", "error"), [(401, UnskewError), (403, UnskewError), (500, httpx.HTTPStatusError)]
)
def test_a_run_that_somebody_has_ended_says_so(tmp_path, status, error):
    """Its ending was "HTTPStatusError: Client error '401 Unauthorized' for url ..."."""

    class Ended:
        def __getattr__(self, call):
            def refuse(request):
                response = httpx.Response(
                    status, request=httpx.Request("POST", "https://127.0.0.1/v1/runtime")
                )
                response.raise_for_status()

            return refuse

    box = Mailbox(Ended(), 1, tmp_path)
    for ask in (box.get_node_ids, lambda: box.pull_messages(["m1"]), lambda: box.push_messages([])):
        with pytest.raises(error) as raised:
            ask()
        assert (error is not UnskewError) or "E507 the run was ended at the server" in str(raised.value)


def test_a_coordinator_without_room_for_a_reply_pauses_and_blames_no_site(tmp_path, monkeypatch):
    def full(*_):
        raise Paused("E203", "disk full: cannot write a large message.")

    monkeypatch.setattr(flower_messages.Arrival, "go_on", full)
    with pytest.raises(Paused, match="E203"):
        pulled(Mailbox(SuperLink(answered(1)), 1, tmp_path), ["m1"])


def transfer(size: int = 7 << 20) -> tuple[Message, dict[str, bytes], bytes]:
    """A message with so many random bytes of tensors, its pieces by number, and the bytes."""
    fake.grid_of({})
    blob = random.Random(0).randbytes(size)
    message = Message(pack_message(SignedMessage("{}", b"signature", blob)), 1, "train", ttl=60)
    message.metadata.__dict__["_message_id"] = message.object_id
    return message, {n: piece.deflate() for n, piece in get_all_nested_objects(message).items()}, blob


def test_a_transfer_that_is_cut_goes_on_where_it_was(tmp_path):
    """It began anew, so that a large model never came through a bad line."""
    message, content, blob = transfer()
    pulled, good = [], 6

    def pull(number: str) -> bytes:
        if len(pulled) == good:
            raise ConnectionError
        pulled.append(number)
        return content[number]

    arrival = flower_messages.Arrival(MessageProto(), get_object_tree(message), tmp_path)
    with pytest.raises(ConnectionError):
        arrival.go_on(pull)
    good = len(content) + 1
    assert all_bytes(unpack_message(arrival.go_on(pull).content).blob) == blob
    assert len(pulled) <= len(content) + flower_messages.AT_ONCE  # those that were on their way come twice


def test_what_names_the_tensors_pieces_is_sent_before_them_and_only_what_is_missing():
    """Who fetches a message while it is sent would else wait for its first piece until the last was there."""
    message, content, _ = transfer()
    sent = []
    flower_messages.send(message, list(content)[1:], lambda number, piece: sent.append((number, piece)))
    assert sorted(number for number, _ in sent) == sorted(list(content)[1:])
    kinds = [piece.split(b" ")[0].split(b"\n")[0][:10] == b"ArrayChunk" for _, piece in sent]
    last = max(place for place, is_chunk in enumerate(kinds) if not is_chunk)
    assert last < kinds.count(False) + flower_messages.AT_ONCE - 1, (
        "of those side by side one may overtake the other"
    )
    assert all(content[number] == piece for number, piece in sent)


def test_a_message_that_is_larger_than_any_is_refused_as_it_comes(tmp_path, monkeypatch):
    """A site could fill the coordinator's disk: Flower's form does not say how large an array is."""
    monkeypatch.setattr(flower_messages, "MOST_BYTES", 4 << 20)
    message, content, _ = transfer()
    with pytest.raises(
        flower_messages.MessageTooLarge, match="its tensors have more than the 4,194,304 bytes expected"
    ):
        flower_messages.Arrival(MessageProto(), get_object_tree(message), tmp_path).go_on(content.__getitem__)


def test_a_superlink_that_is_too_busy_is_asked_again(tmp_path):
    """One answer of 500, as while it forgets a large model, ended the run with a traceback."""
    link = SuperLink(answered(1))
    honest, busy = link.PullMessages, [httpx.Response(500, request=httpx.Request("POST", "http://x"))]

    def pull(request):
        if busy:
            busy.pop().raise_for_status()
        return honest(request)

    link.PullMessages = pull
    box = Mailbox(link, 1, tmp_path)
    box.push_messages = answered_at_once(tmp_path, "m1")
    reply = FlowerChannel(box).ask({1: LARGE}, "train", 1, 5.0)[1]
    assert isinstance(reply, SignedMessage)
    assert reply.text == "node 1"
