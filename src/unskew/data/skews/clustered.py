"""Groups of consecutive clients, each group with its own number of classes per client (ReBaFL)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Gt, MinLen

from unskew.data.clients.partition import Index, Partition, Request, split_among_owners
from unskew.errors import UsageError

TRIES = 20
"""Draws for one client before it may share its classes with another client of its group."""


@dataclass(frozen=True)
class Clustered(Partition):
    """Each client owns random classes; within a group they differ from client to client if chance allows."""

    counts: Annotated[tuple[Annotated[int, Gt(0)], ...], MinLen(1), "classes per client, of each group"]
    name = "clustered"
    value = ("counts",)
    example = "clustered:2-2-3-3-5"

    def deal_all(self, request: Request, rng: np.random.Generator) -> Index:
        K = request.clients
        self.require_classes(max(self.counts), request)
        if len(self.counts) > K:
            raise UsageError(
                "E103", f"skew 'clustered' names {len(self.counts)} groups; there are only {K} clients."
            )
        client_classes = []
        for count, group in zip(self.counts, np.array_split(np.arange(K), len(self.counts))):
            client_classes += _distinct_classes(count, len(group), request.classes, rng)
        return split_among_owners(client_classes, request, rng)


def _distinct_classes(count: int, clients: int, C: int, rng: np.random.Generator) -> list[np.ndarray]:
    """`count` random classes for each client of a group."""
    sets: list[np.ndarray] = []
    previous: set[frozenset[int]] = set()
    for _ in range(clients):
        classes = rng.choice(C, count, replace=False)
        for _ in range(TRIES - 1):
            if frozenset(classes.tolist()) not in previous:
                break
            classes = rng.choice(C, count, replace=False)
        previous.add(frozenset(classes.tolist()))
        sets.append(classes)
    return sets
