"""An exchange of messages in addition to training, which a Part may ask for."""

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
    client(weights, client): runs at every client of the round, without gradients; returns the tree to share.
    server(weights, slice, ups, fed): runs once all answers are in; returns the next weights and slice.
    shares(fed): declares the result of `client`, by leaf, as `Part.shares` does for training.
    everyone: ask all clients instead of only those of the round.
    early: run `client` on the weights and slice that the round started with, so that over a network its
    answers travel with the training replies; `server` still follows the merge.
    sums: the number of calls of `Client.total` in `client`, if it reads samples in no other way; 0 if it may
    read them in any way.
    weights: whether `client` reads the server's weights; if not, none are sent for this exchange, and its
    `weights` are only those that stay at the client.
    reads: the leaves of the Part's slice that `client` reads in `Client.down`, including those that the
    Part's `evaluate_with` needs; others are not sent for this exchange. None: all of them.
    """

    when: Callable[[int, int], bool]
    client: Callable[[Weights, Client], Tree]
    server: Callable[[Weights, Tree, Ups, Fed], tuple[Weights, Tree]]
    shares: Callable[[Fed], dict[str, Share]]
    everyone: bool = False
    early: bool = False
    sums: int = 0
    weights: bool = True
    reads: tuple[str, ...] | None = None

    def often(self, rounds: int) -> int:
        """How often it is due in a run of this many rounds."""
        return sum(bool(self.when(t, rounds)) for t in range(rounds + 1))


def trip_index(trip: Trip, trips: Sequence[Trip]) -> int:
    """The index of a trip among its Part's, identified by the function `client`, because a Part may build its
    trips anew at each access. Raises ValueError if several run one function, as two made by a factory do."""
    places = [i for i, other in enumerate(trips) if _code(other.client) == _code(trip.client)]
    if len(places) != 1:
        raise ValueError(
            f"{len(places)} of its trips run the function '{getattr(trip.client, '__name__', '')}'"
        )
    return places[0]


def _code(client: Any) -> Any:
    return getattr(client, "__code__", client)
