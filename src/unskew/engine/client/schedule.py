"""Which client trains in which lane, and on which rows at which step.

An epoch of client k is floor(n_k / B) full batches and perhaps one short one. Clients whose short batch pads to the
same size share a chunk; inside it lanes are sorted by full batches, so at every step the clients still at work are
the first lanes. Nothing here depends on neighbours: a client's own steps and kernels follow from its own size.

Letters: B batch, G lanes, S steps of a client, E epochs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PAD_TO = 8


@dataclass(frozen=True)
class Recipe:
    """How local epochs are cut into steps, the same for all clients."""

    batch: int
    epochs: int
    has_norms: bool
    drop_last: bool = False


@dataclass(frozen=True)
class Work:
    """One client's epoch: `full` batches of B rows, then `short` rows (0: none)."""

    client: int
    n: int
    full: int
    short: int
    frozen: bool

    def steps(self, epochs: int) -> int:
        return epochs * (self.full + (self.short > 0))


@dataclass(frozen=True)
class Chunk:
    """Clients that train side by side; `pad` is the padded size of their short batches (0: none)."""

    work: tuple[Work, ...]
    pad: int
    frozen: bool


@dataclass(frozen=True)
class Step:
    """One step of a chunk: its first `active` lanes take it, on `size` rows; local_G: each lane's own step number."""

    active: int
    size: int
    short: bool
    rows_GB: np.ndarray
    weight_GB: np.ndarray | None
    local_G: np.ndarray


def work_of(client: int, n: int, recipe: Recipe) -> Work:
    """A short batch of one sample is dropped where batches are normalised; a client with one sample is not."""
    full, short = divmod(n, recipe.batch)
    if full and (recipe.drop_last or (recipe.has_norms and short == 1)):
        short = 0
    return Work(client, n, full, short, recipe.has_norms and n == 1)


def chunks(clients: Sequence[int], sizes: np.ndarray, recipe: Recipe, lanes: int) -> list[Chunk]:
    """Clients without samples are left out. With `lanes` above 1 a chunk has at most `lanes` clients."""
    buckets: dict[tuple[int, bool], list[Work]] = defaultdict(list)
    for client in clients:
        if n := int(sizes[client]):
            work = work_of(client, n, recipe)
            pad = work.short if lanes == 1 else min(recipe.batch, math.ceil(work.short / PAD_TO) * PAD_TO)
            buckets[pad, work.frozen].append(work)
    found = []
    for (pad, frozen), members in sorted(buckets.items()):
        members.sort(key=lambda m: (-m.full, m.client))
        count = math.ceil(len(members) / lanes)
        if lanes > 1 and len(members) >= 4:  # in pairs, for two workers to share; whoever works, the layout is the same
            count += count % 2
        for part in np.array_split(np.arange(len(members)), count):
            found.append(Chunk(tuple(members[i] for i in part), pad, frozen))
    return sorted(found, key=lambda c: -sum(w.steps(1) for w in c.work))


def steps(chunk: Chunk, orders: dict[int, np.ndarray], recipe: Recipe) -> list[Step]:
    """The steps of a chunk, in order. orders[client] is [E, n]: the rows of each epoch, already shuffled."""
    work, B = chunk.work, recipe.batch
    taken = np.zeros(len(work), dtype=np.int64)
    made = []
    for epoch in range(recipe.epochs):
        for s in range(max(w.full for w in work)):
            active = sum(w.full > s for w in work)
            rows = np.stack([orders[w.client][epoch, s * B : (s + 1) * B] for w in work[:active]])
            made.append(Step(active, B, False, rows, None, taken[:active].copy()))
            taken[:active] += 1
        if chunk.pad:
            rows = np.zeros((len(work), chunk.pad), dtype=np.int64)
            weight = np.zeros((len(work), chunk.pad), dtype=np.float32)
            for g, w in enumerate(work):
                short = orders[w.client][epoch, w.full * B : w.full * B + w.short]
                rows[g, : len(short)] = short
                weight[g, : len(short)] = 1
            made.append(Step(len(work), chunk.pad, True, rows, weight, taken.copy()))
            taken += 1
    return made
