"""The random numbers that the hooks of a Part are handed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch

from tests.round.training import linear, trainer
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.shares import Noise


@dataclass(frozen=True)
class Deck(Part):
    """Asks for 0..high-1 in turn, and keeps what the client with this id was handed at each step."""

    high: int = 16
    client: int = 0
    dealt: list = field(default_factory=list, compare=False)
    name: ClassVar[str] = "deck"

    def noise(self, fed, down):
        return {"card": Noise("cycle", (self.high,))}

    def loss(self, w, out, b, c):
        if int(c.id) == self.client:
            self.dealt.append(c.noise["card"])
        return 0.0


def dealt(high: int, n: int, batch: int, epochs: int) -> list[torch.Tensor]:
    """What one client with n samples was handed at each of its steps."""
    deck = Deck(high)
    clients, start = trainer(linear(4), (4,), Method(deck), lanes=1, sizes=(n, 3), batch=batch, epochs=epochs)
    clients.train(start, [0, 1], {})
    return deck.dealt


def test_a_deck_as_large_as_the_batch_is_dealt_out_whole_at_every_step():
    steps = dealt(high=16, n=48, batch=16, epochs=2)
    assert len(steps) == 6
    assert all(sorted(s.tolist()) == list(range(16)) for s in steps)
    assert not all(torch.equal(s, steps[0]) for s in steps)


def test_a_larger_deck_is_dealt_out_before_it_is_shuffled_again():
    """Five steps of 16 are four decks of 20."""
    cards = torch.cat(dealt(high=20, n=80, batch=16, epochs=1)).tolist()
    decks = [cards[i : i + 20] for i in range(0, 80, 20)]
    assert all(sorted(deck) == list(range(20)) for deck in decks)
    assert len({tuple(deck) for deck in decks}) == 4


def test_a_deck_that_ends_within_a_round_begins_with_a_whole_one():
    """Two steps of 16 take one deck of 20 and the first 12 of another."""
    cards = torch.cat(dealt(high=20, n=32, batch=16, epochs=1)).tolist()
    assert sorted(cards[:20]) == list(range(20))
    assert len(set(cards[20:])) == 12


def test_a_deck_smaller_than_the_batch_is_drawn_with_replacement():
    (cards,) = dealt(high=15, n=16, batch=16, epochs=1)
    assert set(cards.tolist()) <= set(range(15))
    assert len(cards) == 16


@pytest.mark.parametrize("k", [0, 1])
def test_lanes_hand_every_client_the_numbers_of_its_own_step(k):
    """Client 1 takes one step, client 0 three: side by side both see what they see one at a time."""
    seen = {}
    for lanes in (1, 8):
        part = Pull()
        clients, start = trainer(linear(4), (4,), Method(part), lanes=lanes, sizes=(40, 8), epochs=1)
        seen[lanes] = clients.train(start, [0, 1], {})[k].weights
    assert all(torch.allclose(t, seen[8][n], rtol=0, atol=1e-6) for n, t in seen[1].items())


@dataclass(frozen=True)
class Pull(Part):
    """A loss with another random weight at every step."""

    name: ClassVar[str] = "pull"

    def noise(self, fed, down):
        return {"strength": Noise("uniform", per_sample=False)}

    def loss(self, w, out, b, c):
        return c.noise["strength"] * b.mean(out.raw.pow(2).sum(-1))
