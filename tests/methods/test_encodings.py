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
from unskew.core.keys import key
from unskew.core.replies import DecodeError
from unskew.errors import UsageError
from unskew.methods import catalogue, registry
from unskew.methods.efsign import EFSign
from unskew.methods.powersgd import PowerSGD
from unskew.methods.qsgd import QSGD
from unskew.methods.randomk import RandomK
from unskew.methods.shared.weights import pack_bits, packed_size, unpack_bits
from unskew.methods.signsgd import SignSGD
from unskew.methods.topk import TopK
from unskew.report.analysis.runs import traffic_of
from unskew.report.method_pages import method_page
from unskew.runs import conformance
from unskew.runs.disclosure import disclosure_lines
from unskew.runs.model_card import card_text

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


def there_and_back(part, **mine):
    """(what travels, the change as the server reads it, the next private tree)."""
    c = at_work(**mine)
    tree, private = part.encode(CHANGE, c, keys)
    declared = part.encoded(c.fed)
    assert not [
        p for leaf, share in declared.items() if (p := gate.leaf_problem(leaf, _leaf(tree, leaf), share))
    ]
    return tree, part.decode(tree, W, c.fed, keys), private


def _leaf(tree, path):
    first, _, rest = path.partition("/")
    return tree[first][rest] if rest else tree[first]


def test_codes_fill_bytes_from_their_lowest_bits():
    assert pack_bits(torch.tensor([1, 0, 0, 1, 0, 0, 0, 0, 1]), 1).tolist() == [0b1001, 1]
    assert pack_bits(torch.tensor([3, 0, 2, 1, 1]), 2).tolist() == [0b01100011, 1]
    assert pack_bits(torch.tensor([15, 1]), 4).tolist() == [0x1F]
    for bits in (1, 2, 4, 8):
        codes = torch.arange(11) % 2**bits
        assert len(pack_bits(codes, bits)) == packed_size(11, bits)
        assert unpack_bits(pack_bits(codes, bits), bits, 11).tolist() == codes.tolist()


def test_topk_sends_the_largest_changes_and_remembers_the_rest():
    tree, read, private = there_and_back(TopK(share=0.4), error=torch.tensor([0.0, 2.0, 0, 0.5, 0]))
    assert (tree["indices"].tolist(), tree["values"].tolist()) == ([3, 4], [2.5, -3.0])
    assert (read["a"].tolist(), read["b"].tolist()) == ([[0, 0], [0, 2.5]], [-3])
    assert_close(private["error"], [0.1, -2.0, 0, 0, 0])
    assert there_and_back(TopK(share=0.4, memory=False))[2] == {}


def test_randomk_sends_values_whose_places_both_ends_draw():
    tree, read, private = there_and_back(RandomK(share=0.4), error=torch.zeros(5))
    both = torch.cat([read["a"].flatten(), read["b"]])
    assert_close(both + private["error"], [0.1, -4, 0, 2, -3])
    assert sorted(both[both != 0].tolist()) == sorted(v for v in tree["values"].tolist() if v)
    unbiased = there_and_back(RandomK(share=0.4, memory=False))[1]
    assert_close(torch.cat([unbiased["a"].flatten(), unbiased["b"]]), 2.5 * both)


def test_qsgd_rounds_to_levels_of_a_buckets_norm():
    """Of 0.1, -4 and of 0, 2 and of -3 by the largest with one level; of all by the norm of 5.386 with
    127."""
    tree, read, _ = there_and_back(QSGD(bits=2, bucket=2))
    assert tree["norms"].tolist() == [4, 2, 3]
    assert (float(read["a"][0, 1]), read["a"][1].tolist(), read["b"].tolist()) == (-4, [0, 2], [-3])
    assert float(read["a"][0, 0]) in (0, 4)
    tree, read, _ = there_and_back(QSGD(bits=8, bucket=0, norm="l2"))
    assert_close(tree["norms"], [29.01**0.5])
    assert float((read["a"] - CHANGE["a"]).abs().max()) <= 5.4 / 127


def test_signs_of_a_majority_move_weights_and_even_votes_do_not():
    part, fed = SignSGD(lr=0.5), at_work().fed
    tree, read, _ = there_and_back(part)
    assert tree["signs"].item() & 0b11011 == 0b01001
    assert_close(tree["size"], [9.1 / 5])
    votes = [{"a": W["a"] + read["a"] * s, "b": W["b"] + read["b"] * s} for s in (1, 1, 1, -1)]
    ups = SimpleNamespace(
        replies=[SimpleNamespace(weights=w) for w in votes], shares_of_weight=lambda how: [1 / 4] * 4
    )
    assert_close(part.merge(W, {}, ups, fed)[0]["b"], [-0.5])
    ups.replies = ups.replies[2:]
    assert_close(part.merge(W, {}, ups, fed)[0]["b"], [0.0])


def test_where_nothing_has_changed_a_coin_votes():
    c = at_work()
    tree, _ = SignSGD().encode({"a": torch.zeros(64), "b": torch.zeros(1)}, c, keys)
    assert 16 < int(unpack_bits(tree["signs"], 1, 64).sum()) < 48


def test_efsign_sends_the_mean_size_of_a_tensor_and_remembers_the_rest():
    tree, read, private = there_and_back(EFSign(), error=torch.tensor([0.0, 0, 0, 0, 1]))
    assert_close(tree["sizes"], [6.1 / 4, 2.0])
    assert_close(read["a"], [[1.525, -1.525], [1.525, 1.525]])
    assert_close(private["error"], [-1.425, -2.475, -1.525, 0.475, 0])


def test_powersgd_loses_nothing_of_a_change_of_its_rank():
    w = {"a": torch.zeros(4, 6), "b": torch.zeros(3)}
    change = {"a": torch.outer(torch.arange(4.0), torch.arange(6.0)), "b": torch.arange(3.0)}
    c = at_work()
    c.fed.net.weights = lambda: w
    part = PowerSGD(rank=1)
    c.mine = part.client_init(w, c.fed)
    tree, private = part.encode(change, c, keys)
    assert {path: share.shape for path, share in part.encoded(c.fed).items()} == {
        "p/a": (4, 1), "q/a": (6, 1), "whole/b": (3,)
    }  # fmt: skip
    read = part.decode(tree, w, c.fed, keys)
    assert_close(read["a"], change["a"])
    assert_close(private["error"]["a"], torch.zeros(4, 6))
    assert read["b"].tolist() == [0, 1, 2]


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
        loop.trainer.close()
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
        (
            "signsgd+dp(noise_multiplier=1)",
            "E107 'signsgd' and 'dp' cannot be combined: it reads each client's weights",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(method, text):
    with pytest.raises(UsageError, match=text.replace("(", r"\(")):
        conformance.loop_for(registry.parse(method))


def test_without_memory_clients_hold_what_other_parts_remember():
    loop = conformance.loop_for(registry.parse("topk(memory=False)+scaffold"), rounds=2)
    state, _ = loop.round(loop.begin(), 1)
    _, summary = loop.round(state, 2)
    loop.trainer.close()
    assert summary.dropped == 0
    assert set(loop.store.fetch([0])[0]) == {"scaffold"}


def test_encoded_weights_cannot_be_summed_securely():
    with pytest.raises(UsageError, match=r"E108 .* 'qsgd': it encodes the weights that clients send"):
        conformance.loop_for(registry.parse("qsgd"), secure_aggregation="on")


def test_what_dp_clips_is_the_decoded_change():
    """So with all of it sent it is the run without the encoding."""
    ends = []
    for name in ("topk(share=1)+dp(noise_multiplier=1)", "dp(noise_multiplier=1)"):
        loop = conformance.loop_for(registry.parse(name), rounds=1)
        ends.append(loop.round(loop.begin(), 1)[0].weights)
        loop.trainer.close()
    for name, t in ends[0].items():
        assert_close(t, ends[1][name])


def test_what_dpsgd_has_made_noisy_may_be_encoded():
    loop = conformance.loop_for(registry.parse("topk+dpsgd(noise_multiplier=1)"))
    loop.trainer.close()
    assert loop.ledger.weights.guarantee == "dp"


def test_tables_say_that_weights_were_encoded(heard):
    loop, start, replies = heard["topk"]
    (weights,) = [t for t in traffic_of(ledger_of(loop, start, replies)) if t.way == "up"]
    assert weights.name == "weights, encoded by topk"
    assert "| weights, encoded by topk | weights | each |" in card_text(loop.run, loop.record, loop.begin())
    text = "\n".join(disclosure_lines(loop))
    assert "KB a round, encoded by topk, in place of " in text
    assert "In place of the weights that clients train, with it:" in method_page(
        loop.method.parts[0], loop.fed, "it"
    )
