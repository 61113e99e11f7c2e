"""An extra exchange of messages that a Part may ask for beside the training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from unskew.core.client import Client, Fed
from unskew.core.replies import Ups
from unskew.core.shares import Share
from unskew.core.trees import Tree, Weights


@dataclass(frozen=True)
class Trip:
    """One extra exchange, server -> clients -> server, after the merge of a round.

    when(t, T): whether it is due after round t of T; t = 0 is before round 1.
    client(weights, client): runs at every client of the round, without gradients; returns the tree it shares.
    server(weights, slice, ups, fed): runs once all answers are in; returns the next weights and the next
    slice. shares(fed): declares what `client` returns, by leaf, as `Part.shares` does for training.
    everyone: ask all clients, not only those of the round.
    early: run `client` on the weights and slice that the round began with, so that over a network its answers
    travel with the training's; `server` still follows the merge.
    sums: how often `client` calls `Client.total`, if it reads samples in no other way; 0: it may read them in
    any.
    reads: the leaves of its Part's slice that `client` finds in `Client.down`, `evaluate_with` included where
    it takes samples as the model sees them; no others are sent for this exchange. None: all of them.
    """

    when: Callable[[int, int], bool]
    client: Callable[[Weights, Client], Tree]
    server: Callable[[Weights, Tree, Ups, Fed], tuple[Weights, Tree]]
    shares: Callable[[Fed], dict[str, Share]]
    everyone: bool = False
    early: bool = False
    sums: int = 0
    reads: tuple[str, ...] | None = None

    def often(self, rounds: int) -> int:
        """How often it is due in a run of so many rounds."""
        return sum(bool(self.when(t, rounds)) for t in range(rounds + 1))


def trip_index(trip: Trip, trips: Sequence[Trip]) -> int:
    """Which of its Part's trips this is, by what its client runs: a Part may build them anew each time it is
    asked.

    Raises ValueError where several of them run the same function, such as two that one factory has made.
    """
    places = [i for i, other in enumerate(trips) if _code(other.client) == _code(trip.client)]
    if len(places) != 1:
        raise ValueError(
            f"{len(places)} of its trips run the function '{getattr(trip.client, '__name__', '')}'"
        )
    return places[0]


def _code(client: Any) -> Any:
    return getattr(client, "__code__", client)
