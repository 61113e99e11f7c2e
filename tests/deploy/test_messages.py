"""Single messages and who may send them: sizes, numbers, names, serials."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch

from tests.deploy import fake  # skips where cryptography is missing
from unskew.deploy import post as post_module
from unskew.deploy.post import Contact, Post
from unskew.deploy.sealed import Sealed
from unskew.deploy.wire import MOST_HEADER, Limits, WireError, seal, unseal

WIDE = Limits(1 << 20, 100)
KEY = fake.KEYS["s0"]


def test_a_header_above_a_megabyte_is_refused_before_it_is_read():
    with pytest.raises(WireError, match=r"at most 1\.0 MB are expected") as refusal:
        unseal(seal({"text": "x" * MOST_HEADER}, {}, KEY), KEY.public, WIDE)
    assert refusal.value.code == "E304"


def test_more_tensors_than_expected_are_refused_also_under_short_names():
    three = seal({}, {n: torch.zeros(1) for n in "abc"}, KEY)
    with pytest.raises(WireError, match="holds 3 tensors; at most 2 are expected") as refusal:
        unseal(three, KEY.public, Limits(1 << 20, 2))
    assert refusal.value.code == "E304"
    assert set(unseal(three, KEY.public, Limits(1 << 20, 3)).tree) == set("abc")


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_numbers_that_are_not_finite_travel_as_null(value):
    header = unseal(seal({"loss": value, "t": 2.5}, {}, KEY), KEY.public, WIDE).header
    assert (header["loss"], header["t"]) == (None, 2.5)


class Answers:
    """A Channel with one node, whose answer is a function of the request; it keeps what it was asked."""

    def __init__(self, answer: Callable[[Sealed], Sealed]):
        self.answer = answer
        self.requests: list[Sealed] = []

    def nodes(self) -> list[int]:
        return [1]

    def ask(self, requests, kind, t, deadline_s):
        self.requests += requests.values()
        return {node: self.answer(request) for node, request in requests.items()}


def posted(answer: Callable[[Sealed], Sealed]) -> tuple[Post, Answers, list[tuple[int, str, str]]]:
    """A post to the sites s0 and s1, of which s0 is at the node that answers."""
    told: list[tuple[int, str, str]] = []
    channel = Answers(answer)
    keys = {name: fake.KEYS[name].public for name in ("s0", "s1")}
    contact = Contact(channel, ("s0", "s1"), fake.COORDINATOR, keys)
    return Post("r", contact, 0.1, lambda *what: told.append(what), nodes={"s0": 1}), channel, told


def as_site(name: str, signer: str = "s0") -> Callable[[Sealed], Sealed]:
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
    assert told == [(0, "E310", "a node (1) says it is 's7', which is not an admitted site; it is not asked again.")]
    post.greet({})
    assert len(channel.requests) == 1


def test_serials_grow_also_when_the_clock_goes_back(monkeypatch):
    times = iter([9_000, 5_000, 5_000])
    monkeypatch.setattr(post_module.time, "time_ns", lambda: next(times))
    post, channel, _ = posted(as_site("s0"))
    for t in (1, 2, 3):
        post.ask("train", t, {"s0": ({}, {})}, WIDE)
    assert [json.loads(request.text)["serial"] for request in channel.requests] == [9_000, 9_001, 9_002]
