"""Shuffled and split evenly, class by class; samples with masks all together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unskew.data.clients.partition import Index, Partition, Request


@dataclass(frozen=True)
class Iid(Partition):
    """Rows are dealt in turn, like cards from decks of one class each: class counts and sizes differ by at
    most one."""

    name = "iid"
    example = "iid"
    by_class = False

    def deal_all(self, request: Request, rng: np.random.Generator) -> Index:
        y = request.y
        order = np.concatenate([rng.permutation(np.flatnonzero(y == c)) for c in range(request.classes)])
        owner = np.empty(len(y), dtype=np.int64)
        owner[order] = np.arange(len(y)) % request.clients
        return Index.by_owner(owner, request.clients)
