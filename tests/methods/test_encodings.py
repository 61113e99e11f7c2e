"""Parts that encode the weights which clients send: by hand, refused beside others, and read from hostile
clients.

Likeliest mistakes of users: two encodings together, an encoding with secure aggregation, and more sent than
without one.
Worst things a client could send: numbers that wreck the merge, indices where nothing is, a small payload of a
huge tensor.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tests.fixtures import assert_close, client
from unskew.core import encoding, gate
from unskew.core.random_keys import key
from unskew.core.replies import DecodeError
from unskew.errors import UsageError
from unskew.methods import catalogue, registry
from unskew.methods.qsgd import QSGD
from unskew.methods.shared.weights import pack_bits, packed_size, unpack_bits
from unskew.methods.topk import TopK
from unskew.runs import conformance

ENCODINGS = [n for n in catalogue.entries() if registry.parse(n).encoder]
DIFFERS = ("svd",)
"""Whose bytes depend on the change."""
W = {"a": torch.ones(2, 2), "b": torch.zeros(1)}
CHANGE = {"a": torch.tensor([[0.1, -4.0], [0.0, 2.0]]), "b": torch.tensor([-3.0])}


def keys(purpose: str) -> torch.Generator:
    return key(0, 1, 2, "part", purpose)


def at_work(**mine):
    c = client(mine=mine)
    c.fed = SimpleNamespace(shared=("a", "b"), net=SimpleNamespace(weights=lambda: W), seed=0)
    return c


def test_codes_fill_bytes_from_their_lowest_bits():
    assert pack_bits(torch.tensor([1, 0, 0, 1, 0, 0, 0, 0, 1]), 1).tolist() == [0b1001, 1]
    assert pack_bits(torch.tensor([3, 0, 2, 1, 1]), 2).tolist() == [0b01100011, 1]
    assert pack_bits(torch.tensor([15, 1]), 4).tolist() == [0x1F]
    for bits in (1, 2, 4, 8):
        codes = torch.arange(11) % 2**bits
        assert len(pack_bits(codes, bits)) == packed_size(11, bits)
        assert unpack_bits(pack_bits(codes, bits), bits, 11).tolist() == codes.tolist()


@pytest.mark.parametrize(
    ("part", "change", "text"),
    [
        (TopK(share=0.4), lambda t: t | {"indices": t["indices"].flip(0)}, "its indices do not grow"),
        (TopK(share=0.4), lambda t: t | {"indices": t["indices"] * 0 + 3}, "its indices do not grow"),
        (QSGD(bits=4), lambda t: t | {"levels": t["levels"] | 0x0F}, "it holds levels beyond 7"),
        (QSGD(bits=2), lambda t: t | {"levels": t["levels"] | 0xFF}, "it holds levels beyond 1"),
    ],
)
def test_what_no_honest_client_encodes_is_not_read(part, change, text):
    c = at_work(error=torch.zeros(5))
    tree, _ = part.encode(CHANGE, c, keys)
    with pytest.raises(DecodeError, match=text):
        part.decode(change(tree), W, c.fed, keys)


@pytest.fixture(scope="module")
def heard():
    """(the run, what was broadcast, clients' honest replies) of one round, by method."""
    rounds = {}
    for name in ENCODINGS:
        loop = conformance.loop_for(registry.parse(name))
        start = loop.down(loop.begin(), 1)
        rounds[name] = loop, start, loop.trainer.train(start, [0, 4], {})
    return rounds


@pytest.mark.parametrize("name", ENCODINGS)
def test_no_encoding_sends_as_much_as_the_weights_and_all_are_read_back(heard, name):
    loop, start, replies = heard[name]
    plain = sum(t.numel() * 4 for t in start.weights.values())
    most = encoding.bytes_of_weights(loop.method, loop.fed, loop.trainer.sent)
    sent = [encoding.bytes_sent(loop.method, r) for r in replies]
    assert all(size <= most for size in sent) if name in DIFFERS else set(sent) == {most}
    assert max(sent) < 0.27 * plain
    good, refused = encoding.decode_replies(loop.method, replies, start.received, loop.fed, 1)
    assert not refused
    assert all(set(r.weights) == set(loop.trainer.sent) and not r.shares.get(name) for r in good)
    (row,) = [r for r in ledger_of(loop, start, replies) if r["way"] == "up"]
    assert (row["share"], row["encoded"], row["reads"]) == ("w", name, "each")
    assert row["bytes"] == (sent if name in DIFFERS else most)


def ledger_of(loop, start, replies):
    """The rows that one round's replies add."""
    before = len(loop.record.rows["ledger"])
    loop.ledger.trained(1, replies, start)
    return loop.record.rows["ledger"][before:]


@pytest.mark.parametrize(
    ("name", "leaf", "worse", "code"),
    [
        ("topk", "indices", lambda t: t - 10**6, "E303"),
        ("topk", "indices", lambda t: t + 10**6, "E303"),
        ("topk", "indices", lambda t: t.float(), "E303"),
        ("topk", "values", lambda t: t[1:], "E303"),
        ("topk", "values", lambda t: t * float("nan"), "E301"),
        ("topk", "values", lambda t: torch.zeros(10**6), "E303"),
        ("qsgd", "norms", lambda t: t * float("inf"), "E301"),
        ("qsgd", "norms", lambda t: -t - 1, "E303"),
        ("efsign", "signs", lambda t: t[:-1], "E303"),
        ("signsgd", "size", lambda t: t * float("nan"), "E301"),
    ],
)
def test_the_gate_drops_what_is_not_as_declared(heard, name, leaf, worse, code):
    loop, _, (one, other) = heard[name]
    shares = {
        name: {
            encoding.BRANCH: one.shares[name][encoding.BRANCH]
            | {leaf: worse(one.shares[name]["encoded"][leaf])}
        }
    }
    good, (refusal,) = gate.check([replace(one, shares=shares), other], loop.spec, loop.fed.sizes)
    assert (refusal.client, refusal.code) == (0, code)
    assert [r.client for r in good] == [4]


def test_finite_numbers_whose_product_is_not_are_the_senders_failure(heard):
    loop, start, (one, other) = heard["powersgd"]
    tree = one.shares["powersgd"]["encoded"]
    large = {branch: {n: t * 0 + 1e30 for n, t in tree[branch].items()} for branch in ("p", "q")}
    bad = replace(one, shares={"powersgd": {"encoded": tree | large}})
    good, (refusal,) = encoding.decode_replies(loop.method, [bad, other], start.received, loop.fed, 1)
    assert (refusal.client, refusal.code) == (0, "E301")
    assert "as 'powersgd' decodes them, 'w/" in refusal.text
    assert [r.client for r in good] == [4]


@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("topk+qsgd", "E107 topk and qsgd each encode the weights that clients send; keep one"),
        ("signsgd+fedadam", "E107 signsgd and fedadam each replace the merge"),
        ("topk+local", "E108 'topk' cannot run here: clients keep every weight"),
        ("signsgd+dp(noise_multiplier=1)", "E107 'signsgd' and 'dp' cannot be combined: it reads"),
    ],
)
def test_what_does_not_go_together_is_refused(method, text):
    with pytest.raises(UsageError, match=text.replace("(", r"\(")):
        conformance.loop_for(registry.parse(method))


def test_encoded_weights_cannot_be_summed_securely():
    with pytest.raises(UsageError, match=r"E108 .* 'qsgd': it encodes the weights that clients send"):
        conformance.loop_for(registry.parse("qsgd"), secure_aggregation="on")


def test_what_dp_clips_is_the_decoded_change():
    """So with all of it sent it is the run without the encoding."""
    names = ("topk(share=1)+dp(noise_multiplier=1)", "dp(noise_multiplier=1)")
    encoded, plain = (conformance.train_run(registry.parse(name), rounds=1).first for name in names)
    for name, t in encoded.items():
        assert_close(t, plain[name])
