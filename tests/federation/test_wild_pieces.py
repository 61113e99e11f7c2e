"""An admitted site lies about the pieces of its answer: it may cost its answer, and nobody else's disk,
memory or time."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

from flwr.app import ConfigRecord, Message, RecordDict

from tests.federation import fake
from tests.federation.test_mailbox import LARGE, SuperLink, answered, answered_at_once, pulled
from unskew.federation.coordinator.mailbox import FlowerChannel, Mailbox
from unskew.federation.protocol import flower_messages
from unskew.federation.protocol.flower_messages import HEAD, Piece, pack_message, record
from unskew.federation.protocol.signed_messages import SMALL, ByteViews

pytestmark = pytest.mark.flower


def answer(content: RecordDict) -> Message:
    fake.grid_of({})
    asked = Message(pack_message(LARGE), 1, "train", ttl=60)
    asked.metadata.__dict__["_message_id"] = "m1"
    return Message(content, reply_to=asked)


def repeated(piece: bytes, times: int) -> RecordDict:
    """One piece, of which the list of an array's pieces says that it comes so often."""
    array = flower_messages.array(ByteViews([memoryview(b"x" * 10)]))
    one = Piece(ByteViews([memoryview(piece)]), 0)
    array.__dict__["_chunks"] = [(one.object_id, one)] * times
    return RecordDict({HEAD: ConfigRecord({"text": "{}", "signature": b""}), "blob": record({"blob": array})})


@pytest.mark.parametrize(
    ("piece", "times", "why"),
    [
        (bytes(1 << 20), 50, f"E303 its tensors have more than the {3 << 20:,} bytes expected"),
        (b"", 5_000, "E303 its tensors are in more than 4,096 pieces"),
    ],
)
def test_one_piece_that_is_named_over_and_over_is_not_fetched_over_and_over(tmp_path, piece, times, why):
    """8 MB that were sent once became 8 GB on the coordinator's disk, which is full then; pieces of nothing
    never ended."""
    link = SuperLink(answer(repeated(piece, times)))
    box, calls = Mailbox(link, 1, tmp_path), []  # type: ignore[arg-type]
    pull, box.most = link.PullObject, 3 << 20
    link.PullObject = lambda request: [calls.append(request.object_id), pull(request)][1]
    (message,) = pulled(box, ["m1"])
    assert message.error.reason == why
    assert (
        len(calls) <= 5 + 4 + flower_messages.AT_ONCE
    )  # what names the pieces, those up to one too many, and those on their way


def test_a_message_is_held_in_memory_only_as_far_as_an_honest_one_goes(tmp_path, monkeypatch):
    monkeypatch.setattr(flower_messages, "MOST_TEXT", 1 << 20)
    records = {f"r{k}": ConfigRecord({"x": bytes([k]) * 400_000}) for k in range(9)}
    link = SuperLink(answer(RecordDict(records)))
    (message,) = pulled(Mailbox(link, 1, tmp_path), ["m1"])  # type: ignore[arg-type]
    assert message.error.reason == "E303 it holds more than 1 MB beside its tensors"


def test_a_piece_now_and_then_does_not_keep_a_fetcher_beyond_the_deadline(tmp_path, monkeypatch):
    """Each was in time by itself; an answer in 4,096 pieces would have kept a fetcher for 16 hours."""
    link, box = SuperLink(answered(1)), None
    box = Mailbox(link, 1, tmp_path)  # type: ignore[arg-type]
    monkeypatch.setattr(box, "push_messages", answered_at_once(tmp_path, "m1"))
    box._until["m1"] = time.monotonic() - 1
    (message,) = pulled(box, ["m1"])
    assert "it came too late to be of use" in message.error.reason


def test_the_deadline_of_a_message_is_that_of_its_answer(tmp_path):
    class Taking(SuperLink):
        PushObject = None

        def PushMessages(self, request):
            numbers = [head.metadata.message_id for head in request.messages_list]
            return SimpleNamespace(message_ids=numbers, objects_to_push=[], session_id="s")

    fake.grid_of({})
    box, before = Mailbox(Taking(), 1, tmp_path), time.monotonic()  # type: ignore[arg-type]
    (first,) = box.push_messages([Message(pack_message(LARGE), 1, "train", ttl=30)])
    assert 29 < box._until[first] - before < 31
    box._until[first] = before - 1
    (second,) = box.push_messages([Message(pack_message(LARGE), 2, "train", ttl=30)])
    assert set(box._until) == {second}  # what is over is forgotten


def test_what_could_not_be_fetched_is_deleted_at_the_server_too(tmp_path):
    """It stayed until the run was over, so that a site could leave its largest there in every round."""
    link, confirmed = SuperLink(answer(repeated(bytes(1 << 20), 50))), []
    link.ConfirmMessageReceived = lambda request: confirmed.append(request.message_object_id)
    box = Mailbox(link, 1, tmp_path)  # type: ignore[arg-type]
    box.most = 1
    pulled(box, ["m1"])
    box._fetchers.shutdown()
    assert len(confirmed) == 1


def test_the_bound_of_an_exchange_reaches_the_mailbox_and_the_coordinator_reads_why(tmp_path):
    """The bound is what the study's declared Shares and weights have at most."""
    grid = fake.grid_of({})
    FlowerChannel(grid).ask({}, "train", 1, 0.0, 1234)
    assert grid.most == 1234
    seen, too_much = [], "E303 too much (Flower's code 3)"
    sites = fake.sites(Path(tmp_path) / "sites", fake.federation())
    channel = fake.Direct(
        sites, lambda site, asked, honest: too_much if site == "s1" and '"train"' in asked.text else honest
    )
    honest = channel.ask
    channel.ask = lambda requests, kind, t, deadline_s, most: [
        seen.append((kind, most)),
        honest(requests, kind, t, deadline_s, most),
    ][1]
    loop, _, _ = fake.run(tmp_path / "run", channel, fake.small("fedavg", rounds=1))
    assert any(e["code"] == "E303" and "s1 failed: too much" in e["text"] for e in loop.record.rows["events"])
    most = dict(seen)
    assert 0 < most["hello"] < most["train"] < SMALL < flower_messages.MOST_BYTES
