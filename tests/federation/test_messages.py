"""Single messages and who may send them: sizes, numbers, names, serials."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tests.federation import fake  # skips where cryptography is missing
from unskew.federation.coordinator import correspondence as post_module
from unskew.federation.coordinator.correspondence import Contact, Correspondence
from unskew.federation.journal import Journal
from unskew.federation.protocol.hello import Hello, data_change, data_difference
from unskew.federation.protocol.signed_messages import SignedMessage
from unskew.federation.protocol.wire_format import (
    MOST_HEADER,
    Limits,
    Packet,
    WireError,
    reply_of,
    seal,
    unseal,
)
from unskew.version import __version__

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


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_numbers_that_are_not_finite_travel_as_null(value):
    header = unseal(seal({"loss": value, "t": 2.5}, {}, KEY), KEY.public, WIDE).header
    assert (header["loss"], header["t"]) == (None, 2.5)


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
    contact = Contact(channel, ("s0", "s1"), fake.COORDINATOR, keys)
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


def test_a_node_that_is_no_admitted_site_is_named_and_not_asked_again():
    post, channel, told = posted(as_site("s7", signer="s7"))
    post.nodes.clear()
    assert post.greet({}) == {}
    assert told == [
        (0, "E310", "a node (1) says it is 's7', which is not an admitted site; it is not asked again.")
    ]
    post.greet({})
    assert len(channel.requests) == 1


def test_serials_grow_over_restarts_whatever_the_clock_says(tmp_path, monkeypatch):
    """N4: they were the coordinator's clock; an hour back, and no run could be resumed."""
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
    """N2: the name in the hello was believed, whoever had signed it; the victim was shut out and blamed."""
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
    """N6: escape codes and newlines of a site's error reached the coordinator's terminal and log."""
    nasty = "\x1b[2J\nround 9: 3/3 sites"
    harmless = "\\x1b[2J\\nround 9: 3/3 sites"

    def refusing(request: SignedMessage) -> SignedMessage:
        return seal({"re": request.digest, "site": "s0", "code": "E2\n", "text": nasty}, {}, KEY)

    post, _, told = posted(refusing)
    assert post.ask("train", 1, {"s0": ({}, {})}, WIDE) == {}
    assert told == [(1, "E311", f"s0: {harmless} Reply dropped.")]
    for answer in (lambda request: nasty, greeting("s0", shape=[nasty]), as_site(nasty), greeting(nasty)):
        post, _, told = posted(answer)
        post.nodes.clear()
        assert post.greet({}) == {}
        assert len(told) == 1
        assert harmless in told[0][2].replace("\\\\", "\\")
        assert told[0][2].isprintable()
    named = Hello.read({**HELLO, "site": "s0", "classes": ["a", nasty], "versions": {nasty: nasty}})
    assert all(text.isprintable() for text in (*named.classes, *named.versions, *named.versions.values()))


def test_another_python_resumes_and_another_torch_does_not():
    """N5: a site's Python 3.11.x to 3.11.y, and nobody could resume, ever."""
    versions = {"unskew": __version__, "torch": "2.13.0", "python": "3.11.7"}
    before = Hello.read({**HELLO, "site": "s0", "versions": versions})
    patched = replace(before, versions={**versions, "python": "3.11.9"})
    assert not data_change(before, patched)
    assert not data_difference(before, patched)
    assert before.data == patched.data
    another = replace(before, versions={**versions, "torch": "2.14.0"})
    assert data_change(before, another).startswith(
        "s0 runs another version of torch than when the run began: it had 2.13.0"
    )
    assert not data_difference(before, another), "sites of one run may have different ones, which is told"
    assert "must upgrade" in data_change(before, replace(before, versions={**versions, "unskew": "7.7"}))
    assert before.data != replace(before, test=1).data


def test_tensors_arrive_in_the_order_of_names_at_addresses_where_torch_would_put_them():
    """Else what a hook adds up, or the kernel that it calls, has other last bits than in the simulator, now
    and then."""
    sent = {name: {f"{i}.w": torch.zeros(i) for i in range(13, 0, -1)} for name in ("w", "down")}
    tree = unseal(seal({}, sent, KEY), KEY.public, WIDE).tree
    assert [list(tree), *(list(tree[n]) for n in tree)] == [["down", "w"], *2 * [sorted(sent["w"])]]
    assert {t.data_ptr() % 64 for t in (*tree["w"].values(), *tree["down"].values())} == {0}


@pytest.mark.parametrize("value", [10**400, -(10**400), 1e301, float("inf"), float("nan"), "12", None, [3]])
def test_what_is_no_number_of_samples_is_none(value):
    """Also a whole number that no float can hold, on which `float` fails."""
    reply = reply_of(2, Packet({"n": value, "loss": value}, {}))
    assert reply is not None
    assert math.isnan(reply.size)
    assert math.isnan(float(reply.loss))
