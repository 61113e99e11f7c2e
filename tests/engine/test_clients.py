"""What a trip's client is given of its own data."""

from __future__ import annotations

import torch

from tests.engine.training import linear, trainer
from unskew.core.client import Client
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.trees import Tree, Weights
from unskew.core.trip import Trip


def sampled(purpose: str, *, t: int = 1, count: int = 10, replacement: bool = False) -> list[list[int]]:
    """Which of their 30 samples a trip draws at two equally large clients, as places among the client's own rows."""
    clients, start = trainer(linear(4), (4,), Method(), sizes=(30, 30))

    def draw(w: Weights, c: Client) -> Tree:
        return {"x": c.sample(count, purpose, replace=replacement).x}

    trip = Trip(lambda t, T: True, draw, lambda w, s, ups, fed: (w, s), lambda fed: {}, everyone=True)
    replies = clients.visit(trip, Part(), type(start)(t, start.lr, start.weights, start.down), [0, 1], {})
    clients.close()
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


def test_with_replacement_samples_come_twice():
    assert all(len(set(places)) < 40 for places in sampled("buffer", count=40, replacement=True))
    assert all(torch.tensor(places).max() < 30 for places in sampled("buffer", count=40, replacement=True))
