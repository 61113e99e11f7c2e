"""The lanes of clients, and the rows of every step.

An epoch of client k has floor(n_k / B) full batches and possibly a short one. Clients whose short batches are
padded to the same size share a chunk. Inside it lanes are sorted by the number of full batches, so that the
active clients of every step are the first lanes. A client's steps and kernels depend only on its own size.

Letters: B batch, E epochs, G lanes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

PAD_TO = 8
"""On a CPU with several lanes short batches are padded to a multiple of this; on a GPU to a whole batch."""


@dataclass(frozen=True)
class Recipe:
    """The division of local epochs into steps, for all clients.

    batch: samples per step. epochs: local epochs per round. has_norms: the model normalises by statistics of
    the batch. drop_last: leave out an epoch's short batch. apart: at every step each sample is drawn
    independently, with probability min(1, batch / n).
    """

    batch: int
    epochs: int
    has_norms: bool
    drop_last: bool = False
    apart: bool = False


@dataclass(frozen=True)
class Work:
    """One client's epoch over its n samples: `full` batches of B, then one of `short` samples (0: none).

    frozen: the client has a single sample, so batch normalisation uses its running statistics.
    """

    client: int
    n: int
    full: int
    short: int
    frozen: bool

    def steps(self, epochs: int) -> int:
        """The number of local steps in this number of epochs."""
        return epochs * (self.full + (self.short > 0))

    def samples_seen(self, recipe: Recipe) -> int:
        """The number of samples in the steps of all epochs; fewer than n per epoch if a batch is dropped."""
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

    size: rows of a batch, including padding. short: whether this is the short batch of an epoch.
    rows_GB: the samples of each lane. weight_GB: 1 for a sample and 0 for padding; None without padding.
    local_G: the number of steps that each lane has taken before. drawn_G: the number of samples of each lane
    if they are drawn independently. resting: names of weights that no lane changes at this step.
    """

    active: int
    size: int
    short: bool
    rows_GB: np.ndarray
    weight_GB: np.ndarray | None
    local_G: np.ndarray
    drawn_G: np.ndarray | None = None
    resting: frozenset[str] = frozenset()

    @property
    def width(self) -> int:
        """G: the active lanes, and possibly a filler."""
        return len(self.rows_GB)


def work_of(client: int, n: int, recipe: Recipe) -> Work:
    """The epoch of a client with n samples.

    If the model normalises batches, a short batch of one sample is dropped, unless it is the client's only
    one.
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
    """The clients with samples, in chunks of at most `lanes`, in descending order of work.

    gpu: prefer few chunks, since padding costs a GPU little; else prefer little padding.
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
        if lanes > 1 and len(members) >= 4 and not gpu:
            count += count % 2  # even, for two workers; it must not depend on the number of workers
        least, more = divmod(len(members), count)  # the first `more` chunks have one member more
        rest = iter(members)
        plan += [Chunk(tuple(islice(rest, least + (i < more))), pad, frozen) for i in range(count)]
    return sorted(plan, key=lambda c: -sum(w.steps(1) for w in c.work))


def steps(chunk: Chunk, orders: dict[int, np.ndarray], recipe: Recipe) -> list[Step]:
    """The steps of a chunk, in order. orders: by client, the shuffled rows of each epoch, [E, n]."""
    work, B = chunk.work, recipe.batch
    local_G = np.zeros(len(work), dtype=np.int64)
    plan = []
    for epoch in range(recipe.epochs):
        for s in range(max(w.full for w in work)):
            active = sum(w.full > s for w in work)
            rows = np.stack([orders[w.client][epoch, s * B : (s + 1) * B] for w in work[:active]])
            plan.append(Step(active, B, False, rows, None, local_G[:active].copy()))
            local_G[:active] += 1
        if chunk.pad:
            rows = np.zeros((len(work), chunk.pad), dtype=np.int64)
            weight = np.zeros((len(work), chunk.pad), dtype=np.float32)
            for g, w in enumerate(work):
                short = orders[w.client][epoch, w.full * B : w.full * B + w.short]
                rows[g, : len(short)] = short
                weight[g, : len(short)] = 1
            plan.append(Step(len(work), chunk.pad, True, rows, weight, local_G.copy()))
            local_G += 1
    return plan


def poisson_rows(
    rows: np.ndarray, count: int, batch: int, generator: np.random.Generator
) -> list[np.ndarray]:
    """The samples of `count` steps: each of a client's n rows independently with probability batch / n."""
    chance = min(1.0, batch / len(rows))
    return [rows[generator.random(len(rows)) < chance] for _ in range(count)]


def widths(chunk: Chunk, plan: Sequence[Step]) -> dict[int, int]:
    """By client, its largest number of samples in a step if they are drawn independently; else empty."""
    drawn = [(w.client, g) for g, w in enumerate(chunk.work) if plan and plan[0].drawn_G is not None]
    return {
        k: max(int(s.drawn_G[g]) for s in plan if s.drawn_G is not None and g < s.active) for k, g in drawn
    }


def poisson_steps(chunk: Chunk, drawn: dict[int, list[np.ndarray]], recipe: Recipe) -> list[Step]:
    """The steps of a chunk with independently drawn samples. drawn: by client, the rows of each step."""
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
