"""Replies out of all proportion are dropped, and their sites named."""

from __future__ import annotations

import json

import pytest
import torch

from tests.federation import fake
from tests.federation.test_bad_replies import BAD, again, meddling, opened, silence
from unskew.core.replies import Reply
from unskew.core.trees import tree_map
from unskew.federation.coordinator.outliers import norm_outliers
from unskew.records.checkpoints import digest


def times(factor: float, branch: str = "w"):
    """What BAD sends, multiplied."""

    def change(asked, honest):
        packet = opened(honest)
        packet.tree[branch] = tree_map(
            lambda t: t * factor if t.is_floating_point() else t, packet.tree[branch]
        )
        return again(packet)

    return change


def events(path) -> list[tuple[str, str]]:
    return [(e["code"], e["text"]) for e in fake.events(path)]


def run(tmp_path, meddle, settings, nodes=None):
    sites = fake.sites(tmp_path / "sites", fake.federation())
    channel = fake.Direct({n: s for n, s in sites.items() if nodes is None or n in nodes}, meddle)
    return fake.run(tmp_path / "run", channel, settings)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "flea"])
def test_weights_of_1e12_are_dropped_and_only_their_sender_is_named(tmp_path, name):
    _, state, _ = run(tmp_path, meddling(times(1e12)), fake.small(name))
    ((code, text),) = events(tmp_path / "run")
    assert code == "E318"
    assert text.startswith("s2 round 2: it changes the model's weights by ")
    away = fake.Direct(fake.sites(tmp_path / "away", fake.federation()), meddling(silence))
    assert digest(state.weights) == digest(fake.run(tmp_path / "run2", away, fake.small(name))[1].weights)


def test_what_a_part_shares_is_compared_as_well(tmp_path):
    run(tmp_path, meddling(times(1e12, "shares")), fake.small("scaffold+clip_median"))
    ((code, text),) = events(tmp_path / "run")
    assert (code, text[:40]) == ("E318", "s2 round 2: it changes what 'scaffold' s")


def replies(*moves: float, shares: dict[int, float] | None = None) -> list[Reply]:
    """Clients whose one weight, which began at 1, moved so far."""
    return [
        Reply(
            k, 1.0, {"w": torch.tensor([1.0 + d])}, {"p": {"s": torch.tensor([(shares or {}).get(k, 1.0)])}}
        )
        for k, d in enumerate(moves)
    ]


START = {"w": torch.tensor([1.0])}


def refused(answers: list[Reply], of_samples=()) -> dict[int, str]:
    return norm_outliers(("w",), START, answers, lambda k: START, of_samples)


@pytest.mark.parametrize(
    ("moves", "clients"),
    [
        ((0.1, 0.2, 0.3), []),
        ((0.01, 0.01, 5.0), [2]),  # 500 times the others' median and above |w| = 1
        ((0.001, 0.001, 0.9), []),  # 900 times, but less than the model's size
        ((0.1, 0.1, 9.0), []),  # 90 times: a site with many samples moves further
        ((5.0, 5.0, 0.0), []),
        ((5.0, 0.0), []),  # of two, either may be the odd one out
        ((500.0, 0.1), [0]),
        ((1e9,), []),
    ],
)
def test_worked_by_hand(moves, clients):
    assert list(refused(replies(*moves))) == clients


def test_shared_values_worked_by_hand():
    assert not refused(replies(0, 0, 0, shares={2: 1e5}))  # sums grow with the samples
    assert list(refused(replies(0, 0, 0, shares={2: 1e5}), of_samples=["p"])) == [2]
    assert refused(replies(0, 0, 0, shares={2: 1e7})) == {
        2: "it changes what 'p' shares by 1e+07, the other sites by 1 (median of norms)"
    }


def earlier(factor: float):
    """Features that BAD sends with its training of round 1, so many times as large."""

    def meddle(site, asked, honest):
        told = json.loads(asked.text)
        return (
            times(factor, "early")(asked, honest)
            if (site, told["kind"], told["t"]) == (BAD, "train", 1)
            else honest
        )

    return meddle


@pytest.mark.parametrize("factor", [1e30, 2e3])
def test_features_that_come_with_the_training_are_compared_as_well(tmp_path, factor):
    """Of a trip that travels with the training nothing was compared: one site's features wrecked the model of
    all, and honest sites were named for what became of them."""
    run(tmp_path, earlier(factor), fake.small("flea(fused=True)", rounds=3))
    ((code, text),) = events(tmp_path / "run")
    assert (code, text[:44]) == ("E318", "s2 round 1: it changes what 'flea' shares by")
    ledger = [json.loads(line) for line in (tmp_path / "run/ledger.jsonl").read_text().splitlines()]
    lost = [row for row in ledger if row.get("dropped")]
    assert {(row["t"], *row["clients"]) for row in lost} == {(1, 2)}
    assert {row["share"] for row in lost} == {row["share"] for row in ledger if row["share"][:5] == "flea/"}


FORGED = "x\nE318 s1 round 1: it changes the model's weights by 9.\x1b[31m"


def test_a_name_that_a_site_makes_up_writes_no_line_of_its_own(tmp_path):
    def rename(asked, honest):
        packet = opened(honest)
        names = dict(packet.tree["score"])
        packet.tree["score"] = {FORGED: names.pop(next(iter(names)))} | names
        return again(packet)

    _, _, said = run(tmp_path, meddling(rename), fake.small("fedavg", eval_every=1))
    told = [text for text in said if "x\\nE318 s1" in text]
    assert [text[:5] for text in told] == ["E303 "]
    assert not [text for text in said if "\nE318" in text or "\x1b" in text]
    assert not [text for _, text in events(tmp_path / "run") if "\n" in text]
