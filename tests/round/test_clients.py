"""What a client is given: samples of its own in a trip, and the weights that it kept."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from tests.round.training import linear, trainer
from unskew.core.client import Client
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.shares import Share
from unskew.core.trees import Tree, Weights
from unskew.core.trip import Trip
from unskew.methods import registry
from unskew.runs import conformance
from unskew.runs.assemble import loop_of
from unskew.runs.resolve import resolve


def sampled(purpose: str, *, t: int = 1, count: int = 10, replacement: bool = False) -> list[list[int]]:
    """Which of their 30 samples a trip draws at two clients, as places among the client's own rows."""
    clients, start = trainer(linear(4), (4,), Method(), sizes=(30, 30))

    def draw(w: Weights, c: Client) -> Tree:
        return {"x": c.sample(count, purpose, replace=replacement).x}

    trip = Trip(lambda t, T: True, draw, lambda w, s, ups, fed: (w, s), lambda fed: {}, everyone=True)
    replies = clients.visit(trip, Part(), type(start)(t, start.lr, start.weights, start.down), [0, 1], {})
    places = []
    for reply in replies:
        own = clients.samples.x[clients.samples.rows[reply.client]]
        equal = (reply.shares[""]["x"][:, None] == own[None]).all(-1)
        assert bool(equal.any(1).all())
        places.append(equal.int().argmax(1).tolist())
    return places


def test_clients_of_one_size_sample_different_places():
    first, second = sampled("buffer")
    assert first != second
    assert len(set(first)) == len(set(second)) == 10


def test_a_sample_is_the_same_in_every_round_and_another_one_for_another_purpose():
    assert sampled("buffer") == sampled("buffer", t=7)
    assert sampled("buffer") != sampled("picture")
    assert sampled("buffer", count=5) == [places[:5] for places in sampled("buffer")]


@dataclass(frozen=True)
class Remembers(Part):
    """Shares how far the weights that the client begins with are from those that it ended with."""

    name = "remembers"
    weight: str = ""

    def shares(self, fed):
        return {"gap": Share(())}

    def client_init(self, w, fed):
        return {"last": torch.zeros_like(w[self.weight])}

    def finish(self, w, c):
        return {"gap": (c.start[self.weight] - c.mine["last"]).abs().max()}, {"last": w[self.weight]}


@pytest.mark.parametrize("lanes", ["1", "8"])
def test_a_client_begins_with_the_weights_that_it_kept(lanes):
    """`c.start` holds the received weights and, of those that never leave, the client's own."""
    method = Method(*registry.parse("fedbn").parts, Remembers(weight="conv1.1.weight"))
    settings = conformance.short_settings(model="cnn_small(batch_norm=True)", lanes=lanes)
    loop = loop_of(resolve(settings, conformance.small_federation(), method))
    state, clients = loop.begin(), [0, 4, 5]
    first = loop.trainer.train(loop.down(state, 1), clients, {})
    second = loop.trainer.train(loop.down(state, 2), clients, {r.client: r.private for r in first})
    assert [float(r.shares["remembers"]["gap"]) for r in second] == [0, 0, 0]
    assert all(float(r.shares["remembers"]["gap"]) > 0 for r in first)
