"""Messages: sizes, names, serial numbers, and tensors with their axes."""

from __future__ import annotations

import itertools
import json
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256 as sha256_of

import pytest
import torch

from tests.federation import fake  # skips where cryptography is missing
from unskew.core.trees import flat_tree
from unskew.federation.coordinator import correspondence as post_module
from unskew.federation.coordinator.correspondence import Contact, Correspondence
from unskew.federation.journal import Journal
from unskew.federation.protocol.hello import Hello
from unskew.federation.protocol.signed_messages import SignedMessage, address_of
from unskew.federation.protocol.wire_format import MOST_HEADER, Limits, WireError, seal, unseal

WIDE = Limits(1 << 20, 100)
KEY = fake.KEYS["s0"]


def test_a_header_above_a_megabyte_is_refused_before_it_is_read():
    with pytest.raises(WireError, match=r"at most 1,100,288 and 1,048,576 are expected") as refusal:
        unseal(seal({"text": "x" * MOST_HEADER}, {}, KEY), KEY.public, WIDE)
    assert refusal.value.code == "E303"


def test_more_tensors_than_expected_are_refused_also_under_short_names():
    three = seal({}, {n: torch.zeros(1) for n in "abc"}, KEY)
    with pytest.raises(WireError, match="holds 3 tensors; at most 2 are expected") as refusal:
        unseal(three, KEY.public, Limits(1 << 20, 2))
    assert refusal.value.code == "E303"
    assert set(unseal(three, KEY.public, Limits(1 << 20, 3)).tree) == set("abc")


class Answers:
    """A Channel with one node, whose answer is a function of the request; it keeps what it was asked."""

    def __init__(self, answer: Callable[[SignedMessage], SignedMessage]):
        self.answer = answer
        self.requests: list[SignedMessage] = []

    def nodes(self) -> list[int]:
        return [1]

    def ask(self, requests, kind, t, deadline_s, most):
        self.requests += requests.values()
        return {node: self.answer(request) for node, request in requests.items()}


def posted(
    answer: Callable[[SignedMessage], SignedMessage],
) -> tuple[Correspondence, Answers, list[tuple[int, str, str]]]:
    """A post to the sites s0 and s1, of which s0 is at the node that answers."""
    told: list[tuple[int, str, str]] = []
    channel = Answers(answer)
    keys = {name: fake.KEYS[name].public for name in ("s0", "s1")}
    contact = Contact(channel, ("s0", "s1"), fake.COORDINATOR, lambda: keys)
    return Correspondence("r", contact, 0.1, lambda *what: told.append(what), nodes={"s0": 1}), channel, told


def as_site(name: str, signer: str = "s0") -> Callable[[SignedMessage], SignedMessage]:
    """Answers every request under a name, signed by a site."""
    return lambda request: seal({"re": request.digest, "site": name}, {}, fake.KEYS[signer])


def test_an_answer_under_another_sites_name_is_refused():
    post, _, told = posted(as_site("s1"))
    assert post.ask("train", 1, {"s0": ({}, {})}, WIDE) == {}
    assert told == [(1, "E307", "s0: it answered another request than this one. Reply dropped.")]
    post, _, told = posted(as_site("s0"))
    assert list(post.ask("train", 1, {"s0": ({}, {})}, WIDE)) == ["s0"]
    assert not told


def test_serials_grow_over_restarts_whatever_the_clock_says(tmp_path, monkeypatch):
    monkeypatch.setattr(post_module.time, "time", lambda: 0.0)
    monkeypatch.setattr(post_module.time, "time_ns", lambda: 0)
    serials = []
    for t in (1, 2, 3):
        journal = Journal(tmp_path / "audit.jsonl", fake.COORDINATOR)
        post, channel, _ = posted(as_site("s0"))
        post = replace(post, journal=journal)
        journal.note("resumed")
        for _ in range(3):
            post.ask("train", t, {"s0": ({}, {})}, WIDE)
        journal.close()
        serials += [json.loads(request.text)["serial"] for request in channel.requests]
    assert len(serials) == 9
    assert all(a < b for a, b in itertools.pairwise(serials))


HELLO = {"train": 5, "test": 0, "shape": [3], "classes": ["a", "b"], "pixels": [], "versions": {}}


def greeting(site: str, **changes: object) -> Callable[[SignedMessage], SignedMessage]:
    """An admitted site s0 that introduces itself as `site`."""

    def answer(request: SignedMessage) -> SignedMessage:
        hello = {**HELLO, "site": site, **changes}
        return seal({"re": request.digest, "site": "s0", "hello": hello}, {}, KEY)

    return answer


def test_an_admitted_site_cannot_introduce_itself_as_another():
    post, _, told = posted(greeting("s1"))
    post.nodes.clear()
    assert post.greet({}) == {}
    assert post.nodes == {}
    assert told == [(0, "E310", "s0 introduces itself as 's1', which is another site.")]
    post, _, told = posted(greeting("s0"))
    post.nodes.clear()
    assert list(post.greet({})) == ["s0"]
    assert post.nodes == {"s0": 1}
    assert not told


def test_what_a_site_says_cannot_move_a_cursor_or_forge_a_line():
    nasty = "\x1b[2J\nround 9: 3/3 sites"
    harmless = "\\x1b[2J\\nround 9: 3/3 sites"

    def refusing(request: SignedMessage) -> SignedMessage:
        return seal({"re": request.digest, "site": "s0", "code": "E2\n", "text": nasty}, {}, KEY)

    post, _, told = posted(refusing)
    assert post.ask("train", 1, {"s0": ({}, {})}, WIDE) == {}
    assert told == [(1, "E311", f"s0: {harmless} Reply dropped.")]
    for answer in (lambda request: nasty, as_site(nasty), greeting(nasty)):
        post, _, told = posted(answer)
        post.nodes.clear()
        assert post.greet({}) == {}
        assert len(told) == 1
        assert harmless in told[0][2].replace("\\\\", "\\")
        assert told[0][2].isprintable()
    named = Hello.read({**HELLO, "site": "s0", "classes": ["a", nasty], "versions": {nasty: nasty}})
    assert all(text.isprintable() for text in (*named.classes, *named.versions, *named.versions.values()))


def test_tensors_arrive_in_the_order_of_names_at_addresses_where_torch_would_put_them():
    """Else what a hook adds up, or the kernel that it calls, has other last bits than in the simulator, now
    and then."""
    sent = {name: {f"{i}.w": torch.zeros(i) for i in range(13, 0, -1)} for name in ("w", "down")}
    tree = unseal(seal({}, sent, KEY), KEY.public, WIDE).tree
    assert [list(tree), *(list(tree[n]) for n in tree)] == [["down", "w"], *2 * [sorted(sent["w"])]]
    assert {t.data_ptr() % 64 for t in (*tree["w"].values(), *tree["down"].values())} == {0}


BULK_LIMITS = Limits(1 << 26, 50)


def tree() -> dict:
    """Weights of 6 MB, one of them with its axes in another order in memory, and a share."""
    torch.manual_seed(0)
    w = {
        "b": torch.randn(3),
        "a": torch.randn(1000, 1500).T,
        "z": torch.tensor(3),
        "flag": torch.tensor([True, False]),
    }
    return {"w": w, "shares": {"p": {"sums": torch.randn(5)}}}


def test_a_message_goes_through_a_socket_with_its_tensors_as_they_were():
    sent = seal({"run": "r"}, tree(), KEY)
    here, there = socket.socketpair()
    with here, there:
        sender = threading.Thread(target=sent.send, args=(here,))
        sender.start()
        received = SignedMessage.receive(there)
        sender.join()
    packet = unseal(received, KEY.public, BULK_LIMITS)
    assert packet.header["run"] == "r"
    begin = address_of(received.blob)  # its tensors are not copied
    assert begin < packet.tree["w"]["a"].data_ptr() < begin + len(received.blob)
    expected, got = flat_tree(tree()), flat_tree(packet.tree)
    assert list(got) == list(expected)
    assert all(torch.equal(got[n], t) and got[n].stride() == t.stride() for n, t in expected.items())


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda blob: blob[:-1], "E310"),
        (lambda blob: blob[:8], "E310"),
        (lambda blob: b"\xff" * 8 + blob[8:], "E303"),
        (lambda blob: blob + b"x", "E310"),
        (lambda blob: blob.replace(b'"F32"', b'"F64"', 1), "E310"),
        (lambda blob: blob.replace(b"[0,", b"[1,", 1), "E310"),
        (lambda blob: blob.replace(b'"w/a"', b'"w"  ', 1), "E310"),
    ],
)
def test_tensors_that_a_liar_has_signed_are_refused(change, code):
    blob = change(seal({}, tree(), KEY).blob)
    text = json.dumps({"sha256": sha256_of(blob).hexdigest()})
    with pytest.raises(WireError) as refused:
        unseal(SignedMessage(text, KEY.sign(text.encode()), blob), KEY.public, BULK_LIMITS)
    assert refused.value.code == code


def test_tensors_that_are_not_what_was_signed_or_too_many_are_refused():
    sent = seal({}, tree(), KEY)
    with pytest.raises(WireError, match="SHA-256"):
        unseal(replace(sent, blob=sent.blob + b"more"), KEY.public, BULK_LIMITS)
    with pytest.raises(WireError, match="at most 1,003,072 and"):
        unseal(sent, KEY.public, Limits(1_000_000, 5))
