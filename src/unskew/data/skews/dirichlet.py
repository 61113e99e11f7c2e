"""Shares of each class drawn from Dir(alpha), with a balance step, so this is not a pure Dirichlet.

For each class c in turn:  p ~ Dir_K(alpha, ..., alpha);  p_k <- 0 where client k already holds N/K samples or
more; p <- p / sum(p);  the class's shuffled samples are cut at cumsum(p).
The whole draw is repeated until every client has `least` samples. With many clients that hardly ever happens;
then the set is cut into slices of equal classes with about 100 clients each, which are dealt one by one, and
missing samples are moved from the largest clients, so that every request ends.

Letters: N samples, K clients, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Gt

from unskew.data.clients.partition import Index, Partition, Request
from unskew.errors import DataError, UsageError

TRIES = 50
"""Maximal number of draws of a slice."""
WORK = 5_000_000
"""Maximal number of shares to draw; with a million clients, a single draw must do."""
CLASS_WORK = 500
"""Number of shares that take as long to draw as a class takes apart from its shares."""
GROUP = 100
"""Number of clients in a slice."""


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Every row belongs to exactly one client."""

    alpha: Annotated[float, Gt(0), "concentration: the smaller, the fewer classes a client holds"]
    min: Annotated[
        int | None, Gt(0), "samples of the smallest client; None: as many as FLea asks for, if feasible"
    ] = None
    groups: Annotated[
        int | None, Gt(0), "groups of clients that share one part of the set each; None: one"
    ] = None
    contiguous: Annotated[
        bool, "whether the groups' parts are consecutive in the file, instead of equal in classes"
    ] = False
    name = "dirichlet"
    value = ("alpha",)
    example = "dirichlet:0.1"

    def deal_all(self, request: Request, rng: np.random.Generator) -> Index:
        y, K = request.y, request.clients
        if self.contiguous and not self.groups:
            text = "skew option 'contiguous' needs the number of groups: dirichlet:0.1,groups=2,contiguous"
            raise UsageError("E103", f"{text}.")
        if self.groups and self.groups > K:
            raise UsageError("E103", f"groups={self.groups} needs at least as many clients; there are {K}.")
        sizes = _group_sizes(K, self.groups or 1)
        slices = _slices(y, sizes, self.contiguous)
        least = self._least(request.classes, slices, sizes)
        if self.groups is None and K > GROUP:
            index = _draw(self.alpha, y, slices[0], K, least, rng)
            if min(index.sizes) >= least:
                return index
            sizes = _group_sizes(K, max(2, K // GROUP))
            slices = _slices(y, sizes, contiguous=False)
            least = min(least, *(len(rows) // k for rows, k in zip(slices, sizes)))
        parts = [repair(_draw(self.alpha, y, rows, k, least, rng), least) for rows, k in zip(slices, sizes)]
        return Index.of([rows for part in parts for rows in part]) if len(parts) > 1 else parts[0]

    def _least(self, C: int, slices: list[np.ndarray], sizes: list[int]) -> int:
        """Samples of the smallest client: `min`, or FLea's minimum as far as there are enough samples."""
        K = sum(sizes)
        feasible = min(len(rows) // k for rows, k in zip(slices, sizes))
        if self.min and self.min > feasible:
            text = f"{K} clients of at least {self.min} samples need {self.min * K:,}"
            raise DataError("E103", f"{text}; there are {sum(map(len, slices)):,}. Feasible: min={feasible}.")
        return self.min or min(feasible, 3 if self.alpha <= 0.1 and K > GROUP else C)


def _group_sizes(K: int, groups: int) -> list[int]:
    """Sizes of groups of K clients that differ by at most one."""
    return [len(part) for part in np.array_split(np.arange(K), groups)]


def _slices(y: np.ndarray, sizes: list[int], contiguous: bool) -> list[np.ndarray]:
    """The rows of each group of `sizes` clients: with equal classes, or consecutive in the file."""
    if len(sizes) == 1:
        return [np.arange(len(y))]
    if contiguous:
        cuts = np.cumsum(sizes)[:-1] * len(y) // sum(sizes)
        return np.split(np.arange(len(y)), cuts)
    order = np.argsort(y, kind="stable")
    return [np.sort(order[g :: len(sizes)]) for g in range(len(sizes))]


def _draw(
    alpha: float, y: np.ndarray, rows: np.ndarray, K: int, least: int, rng: np.random.Generator
) -> Index:
    """The first draw in which every client has `least` rows, or the one with the largest smallest client."""
    decks = [rows[y[rows] == c] for c in range(int(y.max()) + 1)]
    best: list[tuple[np.ndarray, np.ndarray]] = []
    best_sizes = np.full(K, -1)
    for _ in range(int(np.clip(WORK // (max(K, CLASS_WORK) * len(decks)), 1, TRIES))):
        draw, sizes = _one_draw(alpha, decks, len(rows) / K, K, rng)
        if sizes.min() > best_sizes.min():
            best, best_sizes = draw, sizes
        if best_sizes.min() >= least:
            break
    owner = np.concatenate([np.repeat(np.arange(K), counts) for _, counts in best])
    order = np.argsort(owner, kind="stable")
    return Index(
        np.concatenate([deck for deck, _ in best])[order], np.concatenate([[0], np.cumsum(best_sizes)])
    )


def _one_draw(
    alpha: float, decks: list[np.ndarray], even: float, K: int, rng: np.random.Generator
) -> tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray]:
    """(for each class its shuffled rows and each client's number of them, sizes [K])."""
    draw, sizes, alphas = [], np.zeros(K, dtype=np.int64), np.full(K, alpha)
    for deck in decks:
        deck = rng.permutation(deck)
        share = rng.dirichlet(alphas) * (sizes < even)
        if not share.sum() > 0:  # all shares underflowed: equal ones for the clients below N/K samples
            share = (sizes < even).astype(float)
        share = share / share.sum()
        cuts = np.zeros(K + 1, dtype=np.int64)
        cuts[1:-1] = np.cumsum(share)[:-1] * len(deck)
        cuts[-1] = len(deck)
        counts = cuts[1:] - cuts[:-1]
        sizes += counts
        draw.append((deck, counts))
    return draw, sizes


def repair(index: Index, least: int) -> Index:
    """The index with rows moved from the largest clients to those with fewer than `least`; needs K * least
    rows."""
    sizes = index.sizes
    if sizes.min() >= least:
        return _sort_rows(index)
    rows = list(index)
    for k in np.flatnonzero(sizes < least):
        while sizes[k] < least:
            giver = int(np.argmax(sizes))
            count = max(1, min(int(least - sizes[k]), int(sizes[giver] - least) // 2))
            rows[k], rows[giver] = np.concatenate([rows[k], rows[giver][-count:]]), rows[giver][:-count]
            sizes[k] += count
            sizes[giver] -= count
    return _sort_rows(Index.of(rows))


def _sort_rows(index: Index) -> Index:
    """The index with every client's rows in ascending order."""
    return Index(index.rows[np.lexsort((index.rows, index.owner))], index.offsets)
