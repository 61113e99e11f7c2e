"""Which client trains in which lane, and on which rows at which step.

An epoch of client k is floor(n_k / B) full batches and perhaps one short one. Clients whose short batches pad
to the same size share a chunk; inside it lanes are sorted by full batches, so that the clients still at work
are the first lanes at every step. A client's own steps and kernels follow from its own size, never from its
neighbours.

Letters: B batch, E epochs, G lanes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PAD_TO = 8
"""Short batches that train side by side on a CPU are padded to a multiple of this; on a GPU to a whole
batch."""


@dataclass(frozen=True)
class Recipe:
    """How local epochs are cut into steps; the same for all clients.

    has_norms: the model normalises by statistics of the batch. drop_last: leave out an epoch's short batch.
    apart: at every step each sample is drawn by itself, with the probability that makes B of them expected,
    or all n if they are fewer.
    """

    batch: int
    epochs: int
    has_norms: bool
    drop_last: bool = False
    apart: bool = False


@dataclass(frozen=True)
class Work:
    """One client's epoch: of its n samples, `full` batches of B, then one of `short` samples (0: none).

    frozen: the client has a single sample, so its batch has no statistics and the running ones are used.
    """

    client: int
    n: int
    full: int
    short: int
    frozen: bool

    def steps(self, epochs: int) -> int:
        """How many local steps the client takes in so many epochs."""
        return epochs * (self.full + (self.short > 0))

    def samples_seen(self, recipe: Recipe) -> int:
        """How many samples the client's steps train on in all epochs; fewer than n an epoch where a batch is
        dropped."""
        return recipe.epochs * (self.full * min(recipe.batch, self.n) + self.short)


@dataclass(frozen=True)
class Chunk:
    """Clients that train side by side; `pad` is the padded size of their short batches (0: none)."""

    work: tuple[Work, ...]
    pad: int
    frozen: bool


@dataclass(frozen=True)
class Step:
    """One step of a chunk, taken by its first `active` lanes.

    size: samples of a batch, padding included. short: this is the short batch of an epoch.
    rows_GB: the samples of each lane. weight_GB: 1 for a sample and 0 for padding; None where there is no
    padding.
    local_G: how many steps each lane has taken before. drawn_G: how many samples of a lane are no padding,
    where that differs.
    """

    active: int
    size: int
    short: bool
    rows_GB: np.ndarray
    weight_GB: np.ndarray | None
    local_G: np.ndarray
    drawn_G: np.ndarray | None = None

    @property
    def width(self) -> int:
        """G: the active lanes, and perhaps one that only fills up."""
        return len(self.rows_GB)


def work_of(client: int, n: int, recipe: Recipe) -> Work:
    """The epoch of a client with n samples.

    Where the model normalises batches, a short batch of one sample is dropped, unless the client has no
    other.
    """
    if recipe.apart:
        return Work(client, n, -(-n // recipe.batch), 0, False)
    full, short = divmod(n, recipe.batch)
    if full and (recipe.drop_last or (recipe.has_norms and short == 1)):
        short = 0
    return Work(client, n, full, short, recipe.has_norms and n == 1)


def chunks(
    clients: Sequence[int], sizes: np.ndarray, recipe: Recipe, lanes: int, gpu: bool = False
) -> list[Chunk]:
    """The clients that have samples, in chunks of at most `lanes`; those with the most work first.

    gpu: as few chunks as possible, since a GPU computes padding beside the rest; else as little padding as
    possible.
    """
    pad_to = recipe.batch if gpu else PAD_TO
    buckets: dict[tuple[int, bool], list[Work]] = defaultdict(list)
    for client in clients:
        if n := int(sizes[client]):
            work = work_of(client, n, recipe)
            pad = work.short if lanes == 1 else min(recipe.batch, math.ceil(work.short / pad_to) * pad_to)
            buckets[pad, work.frozen].append(work)
    plan = []
    for (pad, frozen), members in sorted(buckets.items()):
        members.sort(key=lambda m: (-m.full, m.client))
        count = math.ceil(len(members) / lanes)
        if (
            lanes > 1 and len(members) >= 4 and not gpu
        ):  # an even number, for two workers to share; the same for any number of them
            count += count % 2
        for part in np.array_split(np.arange(len(members)), count):
            plan.append(Chunk(tuple(members[i] for i in part), pad, frozen))
    return sorted(plan, key=lambda c: -sum(w.steps(1) for w in c.work))


def steps(chunk: Chunk, orders: dict[int, np.ndarray], recipe: Recipe) -> list[Step]:
    """The steps of a chunk, in order. orders[client] is [E, n]: the rows of each epoch, already shuffled."""
    work, B = chunk.work, recipe.batch
    taken = np.zeros(len(work), dtype=np.int64)
    plan = []
    for epoch in range(recipe.epochs):
        for s in range(max(w.full for w in work)):
            active = sum(w.full > s for w in work)
            rows = np.stack([orders[w.client][epoch, s * B : (s + 1) * B] for w in work[:active]])
            plan.append(Step(active, B, False, rows, None, taken[:active].copy()))
            taken[:active] += 1
        if chunk.pad:
            rows = np.zeros((len(work), chunk.pad), dtype=np.int64)
            weight = np.zeros((len(work), chunk.pad), dtype=np.float32)
            for g, w in enumerate(work):
                short = orders[w.client][epoch, w.full * B : w.full * B + w.short]
                rows[g, : len(short)] = short
                weight[g, : len(short)] = 1
            plan.append(Step(len(work), chunk.pad, True, rows, weight, taken.copy()))
            taken += 1
    return plan


def poisson_rows(
    rows: np.ndarray, count: int, batch: int, generator: np.random.Generator
) -> list[np.ndarray]:
    """The samples of `count` steps: each of a client's rows with probability batch / n, whatever becomes of
    the others."""
    chance = min(1.0, batch / len(rows))
    return [rows[generator.random(len(rows)) < chance] for _ in range(count)]


def widths(chunk: Chunk, plan: Sequence[Step]) -> dict[int, int]:
    """By client, the most samples that it has in a step, where they are drawn one by one; empty where they
    are not."""
    drawn = [(w.client, g) for g, w in enumerate(chunk.work) if plan and plan[0].drawn_G is not None]
    return {
        k: max(int(s.drawn_G[g]) for s in plan if s.drawn_G is not None and g < s.active) for k, g in drawn
    }


def poisson_steps(chunk: Chunk, drawn: dict[int, list[np.ndarray]], recipe: Recipe) -> list[Step]:
    """The steps of a chunk whose samples are drawn one by one. drawn[client]: the rows of each of its
    steps."""
    counts, plan = [w.steps(recipe.epochs) for w in chunk.work], []
    for s in range(max(counts)):
        batches = [drawn[w.client][s] for w, count in zip(chunk.work, counts) if count > s]
        size = max(PAD_TO, math.ceil(max(map(len, batches)) / PAD_TO) * PAD_TO)
        rows = np.zeros((len(batches), size), dtype=np.int64)
        weight = np.zeros((len(batches), size), dtype=np.float32)
        for g, batch in enumerate(batches):
            rows[g, : len(batch)], weight[g, : len(batch)] = batch, 1
        lengths = np.array([len(batch) for batch in batches])
        plan.append(Step(len(batches), size, False, rows, weight, np.full(len(batches), s), lengths))
    return plan
