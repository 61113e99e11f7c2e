"""Secure aggregation over a network, the whole round with all sites in this process."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import load

from tests.federation import fake
from tests.federation.test_bits import simulated
from unskew.core.trees import nested_tree, tree_map
from unskew.errors import Paused, UsageError
from unskew.federation.coordinator.correspondence import Correspondence
from unskew.federation.protocol.wire_format import pack, seal, unseal
from unskew.federation.site.site import REQUESTS
from unskew.records.checkpoints import digest
from unskew.report.analysis.runs import traffic_of
from unskew.report.sections.disclosure import items

pytestmark = pytest.mark.flower

ON = {"secure_aggregation": "on"}


def run(tmp_path, method="fedavg", meddle=None, name="run", **changes):
    terms = changes.pop("terms", {})
    channel = fake.Direct(fake.sites(tmp_path / f"{name}-sites", fake.federation()), meddle)
    loop, state, said = fake.run(tmp_path / name, channel, fake.small(method, **{**ON, **changes}), **terms)
    return channel, loop, state, said


def problems(loop) -> list[str]:
    return [f"{e['code']} {e['text']}" for e in loop.record.rows["events"] if e["code"] != "round"]


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("rebafl+scaffold", {}),
        ("fedavg", {"secure_aggregation": "on,bits=32,clip=8", "cap": 0.4}),
    ],
)
def test_the_same_bits_as_the_simulator(tmp_path, method, changes):
    _, loop, state, _ = run(tmp_path, method, **changes)
    assert not problems(loop)
    assert digest(state.weights) == simulated(method, **{**ON, **changes}).digest


def test_the_same_bits_through_flowers_messages(tmp_path):
    grid = fake.grid_of(fake.sites(tmp_path / "sites", fake.federation()))
    loop, state, _ = fake.run(tmp_path / "run", grid, fake.small("fedavg", **ON), deadline_s=60)
    assert not problems(loop)
    assert digest(state.weights) == simulated("fedavg", **ON).digest


PHASES = ("train", "share", "mask", "open")


def lost(site: str, kind: str, t: int = 2):
    """A site that is not there in one phase of one round."""

    def meddle(at, asked, honest):
        head = json.loads(asked.text)
        return None if (at, head["kind"], head["t"]) == (site, kind, t) else honest

    return meddle


def both(*meddles):
    def meddle(at, asked, honest):
        for one in meddles:
            honest = one(at, asked, honest) if honest is not None else None
        return honest

    return meddle


def used(loop) -> list[list[int]]:
    return [e["answered"] for e in loop.record.rows["events"] if e["code"] == "round"]


@pytest.mark.parametrize("kind", PHASES)
def test_a_site_may_be_lost_in_every_phase(tmp_path, kind):
    _, loop, state, _ = run(tmp_path, meddle=lost("s2", kind))
    assert [p[:42] for p in problems(loop)] == ["E311 s2 did not answer within 0.2 s; the r"]
    counted = [0, 1, 2, 3, 4] if kind == "open" else [0, 1, 3, 4]
    assert used(loop) == [[0, 1, 2, 3, 4], counted, [0, 1, 2, 3, 4]]
    _, _, plain, _ = run(
        tmp_path,
        meddle=None if kind == "open" else lost("s2", "train"),
        name="plain",
        secure_aggregation="off",
    )
    assert max(float((plain.weights[n] - w).abs().max()) for n, w in state.weights.items()) < 1e-6


@pytest.mark.parametrize("kind", ["train", "open"])
def test_below_the_threshold_nothing_is_opened_and_the_round_is_skipped(tmp_path, kind):
    """Of five sites four are needed. Three that trained are a sum of their own; later on, three are too
    few."""
    meddle = both(lost("s2", kind), lost("s4", kind), *([lost("s0", kind)] if kind == "train" else []))
    channel, loop, _, _ = run(tmp_path, meddle=meddle)
    skipped = [p for p in problems(loop) if p.startswith("E309")]
    assert any("Nothing was opened. Round skipped, model unchanged." in p for p in skipped)
    assert used(loop)[1] == []
    opened = {(site, t) for site, k, t in channel.asked if k == "open"}
    assert (("s0", 2) in opened) == (kind == "open")
    assert not [
        r for r in loop.record.rows["ledger"] if r["t"] == 2 and r["way"] == "up" and r["share"] == "w"
    ]
    unopened = [r for r in loop.record.rows["ledger"] if r.get("dropped")]
    assert {(r["t"], r["share"], r["reads"], r["kind"]) for r in unopened} <= {(2, "sum", "sum", "weights")}
    assert bool(unopened) is (kind in ("mask", "open"))


def test_nothing_but_the_sum_can_be_read_of_what_sites_send(tmp_path):
    """No reply has a loss, a weight or a shared number in clear, and none is sent twice with one mask."""
    seen = []

    def listen(site, asked, honest):
        head = json.loads(honest.text)
        if head["kind"] in PHASES:
            seen.append((head, len(honest.blob), json.loads(asked.text)))
        return honest

    _, loop, _, _ = run(tmp_path, "rebafl", meddle=listen)
    assert {
        tuple(sorted(set(h) - {"run", "serial", "site", "kind", "t", "re", "sha256", "axes"}))
        for h, _, _ in seen
    } == {("keys", "n"), ("context", "dealt", "seed"), (), ("shares",)}
    assert all(size < 1500 for head, size, _ in seen if head["kind"] != "mask")
    digests = [head["sha256"] for head, _, _ in seen if head["kind"] == "mask"]
    assert len(set(digests)) == len(digests) == 15
    up = [r for r in loop.record.rows["ledger"] if r["way"] == "up" and not r["share"].startswith("score")]
    assert all(r["sum_of"] == 5 for r in up)
    facts = SimpleNamespace(
        is_reference=False,
        metrics={},
        traffic=traffic_of(up),
        privacy={},
        attacks={},
        path=Path("r"),
        config={},
        federation={},
        rounds=1,
    )
    assert {p.readers.partition(", and")[0] for p in items(facts) if p.readers} == {
        "the server, in sums of 5 or more clients"
    }
    (own,) = (tmp_path / "run-sites/s0/runs").glob("*/ledger.jsonl")
    rows = [json.loads(line) for line in own.read_text().splitlines()]
    (weights,) = {r["bytes"] for r in rows if r["share"] == "weights"}
    assert weights == next(r["bytes"] for r in up if r["share"] == "w")
    assert {r["asked"] for r in rows if r["share"] != "said"} == {"mask", "train", "score"}
    left = (tmp_path / "run-sites/s0/runs").glob("*/leaves.txt")
    assert "read: only in the sum of 3 or more clients" in next(left).read_text()


def altered(site: str, kind: str, change, t: int = 2):
    """A site that signs another answer than an honest one would."""

    def meddle(at, asked, honest):
        head = json.loads(asked.text)
        if (at, head["kind"], head["t"]) != (site, kind, t):
            return honest
        packet = unseal(honest, fake.KEYS[site].public, REQUESTS)
        header = {n: v for n, v in packet.header.items() if n not in ("sha256", "axes")}
        return seal(*change(header, packet.tree), fake.KEYS[site])

    return meddle


@pytest.mark.parametrize(
    ("kind", "change", "told"),
    [
        (
            "mask",
            lambda h, tree: (h, tree_map(lambda t: t + 2**61, tree)),
            "E318 round 2: the sum is none of honest numbers",
        ),
        ("mask", lambda h, tree: (h, {**tree, "w": {}}), "E303 s1 round 2: its numbers are others"),
        (
            "train",
            lambda h, tree: ({**h, "keys": ["x"]}, tree),
            "E303 s1 round 2: its number of samples or its keys",
        ),
        (
            "share",
            lambda h, tree: ({**h, "context": "0" * 64}, tree),
            "E318 s1 round 2: it was sent other weights",
        ),
        (
            "share",
            lambda h, tree: ({**h, "dealt": {"s0": "x"}}, tree),
            "E303 s1 round 2: it has not dealt a share",
        ),
        (
            "open",
            lambda h, tree: ({**h, "shares": {"s0": "x"}}, tree),
            "E303 s1 round 2: it gave shares of other sites",
        ),
        (
            "open",
            lambda h, tree: ({**h, "shares": {**h["shares"], "s0": h["shares"]["s1"]}}, tree),
            "E318 s1 or s0 round 2: s1 gave back a false share of s0's secret, which was left out: one of the two has falsified it.",
        ),
        (
            "train",
            lambda h, tree: ({**h, "keys": [h["keys"][0], *h["keys"][:2]]}, tree),
            "E318 s1 round 2: a key that it has sent is not its own alone. It is left out of the sum.",
        ),
    ],
)
def test_garbage_of_one_site_is_bounded(tmp_path, kind, change, told):
    """It costs that site, or at most the round; what is finite and wrong, nobody can see."""
    _, loop, state, _ = run(tmp_path, meddle=altered("s1", kind, change))
    assert any(p.startswith(told) for p in problems(loop)), problems(loop)
    assert [len(k) for k in used(loop)] == [
        5,
        (
            4
            if kind in ("train", "share") or ("E303" in told and kind == "mask")
            else 5
            if kind == "open"
            else 0
        ),
        5,
    ]
    assert all(bool(torch.isfinite(t).all()) for t in state.weights.values())


@pytest.mark.parametrize("other", [False, True])
def test_a_round_is_not_summed_a_second_time_over_other_sites(tmp_path, other):
    """Two sums whose sites differ by one differ by what that site sent. Over the same sites they are the same
    sum."""
    by_node, settings = fake.sites(tmp_path / "sites", fake.federation()), fake.small("fedavg", **ON)

    def die(site, asked, honest):
        head = json.loads(asked.text)
        if (site, head["kind"], head["t"]) == ("s4", "open", 2):  # all have given their shares
            raise KeyboardInterrupt
        return honest

    with pytest.raises(KeyboardInterrupt):
        fake.run(tmp_path / "run", fake.Direct(by_node, die), settings)
    again = fake.Direct(by_node, lost("s2", "mask") if other else None)
    loop, state, _ = fake.run(tmp_path / "run", again, settings)
    assert digest(state.weights) == simulated("fedavg", **ON).digest or other
    told = [p for p in problems(loop) if "round 2 was summed over s0, s1, s2, s3, s4" in p]
    assert len(told) == 4 * other
    assert any("round 2: 0 sites gave shares, and 4 are needed" in p for p in problems(loop)) == other


@pytest.mark.parametrize(
    ("limits", "gone", "counted"),
    [
        ({"peers": ("s3",)}, "train", [5, 3, 5]),
        ({"peers": ("s3",)}, "mask", [5, 0, 5]),  # of the other three none signs alone that s3 has left
        ({"least_sites": 4}, None, [5, 5, 5]),
        ({"least_sites": 5}, None, [4, 4, 4]),  # a sum over five is opened with four
    ],
)
def test_a_site_sums_only_with_the_peers_and_the_number_of_sites_that_its_policy_demands(
    tmp_path, limits, gone, counted
):
    by_node = fake.sites(tmp_path / "sites", fake.federation())
    replace(fake.OPEN, **limits).write(tmp_path / "sites/s2")
    channel = fake.Direct(by_node, lost("s3", gone) if gone else None)
    loop, _, _ = fake.run(tmp_path / "run", channel, fake.small("fedavg", **ON))
    assert [len(k) for k in used(loop)] == counted
    key = f"({next(iter(limits))})"
    assert any(p.startswith("E520 s2") and key in p for p in problems(loop)) == (counted != [5, 5, 5])


def test_a_run_without_a_site_does_not_show_what_that_site_sent_to_the_run_before(tmp_path):
    """What differs between the two sums of round 1 is the update of s4, whom the second run leaves out from
    its beginning."""
    by_node, settings = fake.sites(tmp_path / "sites", fake.federation()), fake.small("fedavg", **ON)
    fake.run(tmp_path / "one", fake.Direct(by_node), settings)
    others = {node: site for node, site in by_node.items() if site.member.name != "s4"}
    with pytest.raises(Paused, match=r"E206 .*3rd in a row without a sum"):  # of the same study and seed
        fake.run(tmp_path / "two", fake.Direct(others), settings.replace(clients=4))
    loop, _, _ = fake.run(tmp_path / "three", fake.Direct(others), settings.replace(clients=4, rounds=4))
    told = [e["text"] for e in loop.record.rows["events"] if (e["t"], e["code"]) == (1, "E525")]
    assert sum("these numbers were summed before, over s0, s1, s2, s3, s4" in text for text in told) == 4
    assert [len(k) for k in used(loop)][:2] == [0, 4]
    fresh, _, _ = fake.run(tmp_path / "four", fake.Direct(others), settings.replace(clients=4, seed=9))
    assert [len(k) for k in used(fresh)] == [4, 4, 4]


def told_otherwise(monkeypatch, change):
    """A coordinator that sets up s1, and nobody else, otherwise. change: of the header and the tensors."""
    honest = Correspondence._seal

    def other(self, site, kind, t, header, tree):
        if (site, kind) == ("s1", "setup"):
            header, tensors = change(dict(header), load(tree.blob))
            tree = pack(nested_tree(tensors))
        return honest(self, site, kind, t, header, tree)

    monkeypatch.setattr(Correspondence, "_seal", other)


@pytest.mark.parametrize(
    "change",
    [
        lambda h, w: ({**h, "clients": 10_000}, w),
        lambda h, w: (h, {path: value + 1 for path, value in w.items()}),
    ],
    ids=["clients", "weights"],
)
def test_a_site_that_is_set_up_otherwise_is_in_no_sum(tmp_path, monkeypatch, change):
    """With 32 bits one site among 10,000 counts 4,096 times less than one of three, so that a coordinator
    could read the update of whom it had told the truth; weights that never travel with a round, here those of
    normalisation, or a model that learns nothing do the same."""
    told_otherwise(monkeypatch, change)
    _, loop, _, _ = run(tmp_path, "fedbn", secure_aggregation="on,bits=32,clip=8")
    assert [p.partition(":")[0] for p in problems(loop)] == [f"E318 s1 round {t}" for t in (1, 2, 3)], (
        problems(loop)
    )
    assert [len(k) for k in used(loop)] == [4, 4, 4]


def test_a_resumed_run_ends_with_the_same_bits(tmp_path):
    by_node = fake.sites(tmp_path / "sites", fake.federation())

    def stop(state, round_):
        if round_.t == 2:
            raise KeyboardInterrupt

    settings = fake.small("scaffold", **ON)
    with pytest.raises(KeyboardInterrupt):
        fake.run(tmp_path / "run", fake.Direct(by_node), settings, shown=stop)
    again = fake.sites(tmp_path / "sites", fake.federation())
    loop, state, _ = fake.run(tmp_path / "run", fake.Direct(again), settings)
    assert digest(state.weights) == simulated("scaffold", **ON).digest
    assert not problems(loop)


def test_a_study_that_needs_single_replies_is_refused_before_anything_is_computed(tmp_path):
    for method in ("clip_median", "flea"):
        with pytest.raises(UsageError, match=f"E108 .*'{method}'"):
            run(tmp_path, method, name=method)
    with pytest.raises(UsageError, match=r"E108 .*takes 3 clients"):
        fake.run(tmp_path / "two", fake.Direct(_two(tmp_path)), fake.small("fedavg", **ON, clients=2))


def _two(tmp_path):
    everybody = fake.sites(tmp_path / "pair", fake.federation())
    return {node: everybody[node] for node in (1000, 999)}
