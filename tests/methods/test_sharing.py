"""What the methods that share data, averages or features send, and what receivers make of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.fixtures import assert_close, batch, client, onehot
from unskew.core.client import Fed
from unskew.core.keys import key
from unskew.core.network import Network
from unskew.merge.krum import krum
from unskew.methods import registry
from unskew.methods.fedavg_ft import HeadTraining, train_head
from unskew.methods.fedbr import FedBR
from unskew.methods.feddata import FedData
from unskew.methods.fedgen import FedGen
from unskew.methods.naivemix import NaiveMix
from unskew.runs import conformance
from unskew.runs.assemble import loop_of
from unskew.runs.resolve import resolve
from unskew.tasks.task import Classification


def begun(text, rounds=0, **changes):
    made = loop_of(
        resolve(conformance.short_settings(**changes), conformance.small_federation(), registry.parse(text))
    )
    try:
        state = made.begin()
        for t in range(1, rounds + 1):
            state, _ = made.round(state, t)
        return made, state
    finally:
        made.trainer.close()


@pytest.mark.parametrize(
    ("method", "reads"), [("fedprox", "sum"), ("fedprox+clip_median", "each"), ("fedgen", "each")]
)
def test_the_ledger_says_whether_the_server_reads_each_clients_weights(method, reads):
    loop, _ = begun(method, rounds=1)
    weights = [row for row in loop.record.rows["ledger"] if (row["way"], row["share"]) == ("up", "w")]
    assert [row["reads"] for row in weights] == [reads]


def test_feddata_collects_a_tenth_of_everybody_at_least_one():
    made, state = begun("feddata")
    pool = state.slices["feddata"]
    assert len(pool["labels"]) == sum(max(1, n // 10) for n in conformance.SIZES if n)
    x, y = made.trainer.samples.x, made.trainer.samples.y.argmax(1)
    for image, label in zip(pool["x"], pool["labels"]):
        (row,) = torch.nonzero((x == image).flatten(1).all(1)).flatten()[:1].tolist()
        assert y[row] == label


def test_feddata_shares_raw_samples_also_where_inputs_are_normalised():
    loop, state = begun("fedrdn+feddata")
    x = loop.trainer.samples.x
    for image in state.slices["feddata"]["x"]:
        assert bool((x == image).flatten(1).all(1).any())


def test_feddata_draws_from_the_union_in_proportion():
    down = {"x": torch.full((6, 1), 9.0), "labels": torch.tensor([2] * 6)}
    noise = {"row": torch.arange(4), "turn": torch.tensor([0.05, 0.14, 0.15, 0.9])}  # 6 / (6 + 36) = 1/7
    b = batch(torch.zeros(4, 1), onehot([0, 0, 1, 1]))
    found = FedData().batch(b, client(down=down, noise=noise, n=torch.tensor(36.0)))
    assert found.x.flatten().tolist() == [9, 9, 0, 0]
    assert found.y.argmax(1).tolist() == [2, 2, 1, 1]


def test_averages_are_of_groups_of_shuffled_samples():
    made, state = begun("fedmix(group=5)")
    pool = state.slices["fedmix"]
    assert len(pool["y"]) == sum(-(-n // 5) for n in conformance.SIZES)
    assert_close(pool["y"].sum(1), torch.ones(len(pool["y"])), 5)
    whole = sum(n // 5 for n in conformance.SIZES)
    assert whole < len(pool["y"])  # the last group of a client may be smaller
    first = made.trainer.samples.x[made.trainer.samples.rows[0]]
    assert_close(pool["x"][: conformance.SIZES[0] // 5].mean(0), first.mean(0), 4)


def test_naivemix_mixes_one_pair_into_the_whole_batch():
    down = {"x": torch.tensor([[0.0], [10.0]]), "y": torch.tensor([[1.0, 0, 0], [0, 0.5, 0.5]])}
    b = batch(torch.ones(2, 1), onehot([0, 1]))
    found = NaiveMix(lam=0.2).batch(b, client(down=down, noise={"row": torch.tensor(1)}))
    assert_close(found.x.flatten(), [2.8, 2.8])
    assert_close(found.y, [[0.8, 0.1, 0.1], [0, 0.9, 0.1]])


def test_naivemix_of_fleas_comparison_mixes_another_pair_into_every_sample():
    """M19: with one strength for the whole batch."""
    down = {"x": torch.tensor([[0.0], [10.0]]), "y": torch.tensor([[1.0, 0, 0], [0, 0.5, 0.5]])}
    drawn = client(down=down, noise={"row": torch.tensor([1, 0]), "lam": torch.tensor(0.5)})
    mixed = NaiveMix(per_batch=True).batch(batch(torch.ones(2, 1), onehot([0, 1])), drawn)
    assert_close(mixed.x.flatten(), [5.5, 0.5])
    assert_close(mixed.y, [[0.5, 0.25, 0.25], [0.5, 0.5, 0]])


def test_fedbr_shares_32_averages_and_its_projection_climbs():
    _, state = begun("fedbr")
    assert state.slices["fedbr"]["x"].shape[0] == 32
    g = {"fedbr.weight0": torch.tensor([2.0]), "conv.weight": torch.tensor([2.0])}
    found = FedBR(mu=0.5).grad(g, {}, None)
    assert found["fedbr.weight0"] == -4
    assert found["conv.weight"] == 2


def test_fedbr_never_sends_its_projection():
    made, _ = begun("fedbr", rounds=1)
    assert not any(n.startswith("fedbr.") for n in made.trainer.sent)
    start = made.fed.net.weights()["fedbr.weight0"]
    for private in made.store.fetch([0, 4]).values():
        assert not torch.equal(private["kept"]["fedbr.weight0"], start)


def test_fedgen_says_nothing_in_the_first_round_and_learns_at_the_server():
    assert FedGen().loss({}, None, None, client(t=1)) == 0
    _, before = begun("fedgen(steps=3)")
    _, after = begun("fedgen(steps=3)", rounds=2)
    G, moved = before.slices["fedgen"]["G"], after.slices["fedgen"]["G"]
    assert all(not torch.equal(G[n], moved[n]) for n in G)
    assert after.slices["fedgen"]["done"] == 6
    assert after.slices["fedgen"]["known"].tolist() == [1, 1, 1]


def test_a_class_nobody_holds_keeps_its_row_of_the_head():
    torch.manual_seed(0)
    net = Network(nn.Sequential(nn.Flatten(), nn.Linear(2, 3)), (2,))
    fed = Fed(2, 3, (2,), 1, 1, 8, 0.1, net, None, Classification())
    w, h = net.weights(), torch.randn(40, 2)
    found = train_head(w, h, onehot((h[:, 0] > 0).long()), fed, HeadTraining(5, 8, 0.1, 0.9), key("head"))
    assert torch.equal(found["1.weight"][2], w["1.weight"][2])
    assert not torch.equal(found["1.weight"][:2], w["1.weight"][:2])
    two = Network(
        nn.Sequential(nn.Flatten(), nn.Linear(2, 2)), (2,)
    )  # and the others learn as if it did not exist
    start = {n: t[:2].clone() for n, t in w.items()}
    y = onehot((h[:, 0] > 0).long(), 2)
    alone = train_head(
        start, h, y, replace(fed, net=two, classes=2), HeadTraining(5, 8, 0.1, 0.9), key("head")
    )
    assert_close(found["1.weight"][:2], alone["1.weight"], 5)
    z = net.head_of(w | found, h)[:, :2]
    assert (z.argmax(1) == (h[:, 0] > 0)).float().mean() > 0.9


def test_krum_counts_the_nearest_others():
    """Of seven points on a line two may be bad: each sums its three nearest; by four or two another one would
    go."""
    points = torch.tensor([0.0, 1.0, 2.0, 4.0, 7.0, 7.5, 30.0])
    square = (points[:, None] - points[None]).square()
    sums = square.sort(1).values[:, 1:4].sum(1)
    assert krum(points[:, None], 2).tolist() == sorted(sums.argsort()[:5].tolist())
    assert sums.argsort()[-2:].tolist() != square.sort(1).values[:, 1:3].sum(1).argsort()[-2:].tolist()
