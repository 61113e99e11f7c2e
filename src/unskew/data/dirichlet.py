"""Dir(alpha) over clients for each class, with the balance step: not a pure Dirichlet.

For each class c in turn:  p ~ Dir_K(alpha, ..., alpha);  p_k <- 0 where client k already holds N/K samples or more;
p <- p / sum(p);  the class's shuffled samples are cut at cumsum(p).
The whole draw is repeated until every client has `least` samples. With many clients that never happens; then the set
is cut into slices of equal classes with about 100 clients each, drawn one by one, and what is still missing moves
over from the largest clients, so that every request ends.

Letters: N samples, K clients, C classes.
"""

from __future__ import annotations

import numpy as np

from unskew.data.index import Index
from unskew.data.skew import Skew
from unskew.errors import DataError, UsageError

TRIES = 50
WORK = 5_000_000
"""Shares drawn at most before giving up on luck: with a million clients a single draw must do."""
GROUP = 100
"""Clients in a slice."""


def dirichlet(skew: Skew, y: np.ndarray, K: int, rng: np.random.Generator) -> Index:
    """Every row of y to exactly one client. Raises DataError (E406) if `min` cannot be met."""
    alpha, C = skew.number(), int(y.max()) + 1
    groups = skew.option("groups")
    if "contiguous" in skew.options and not groups:
        raise UsageError(
            "E103", "skew option 'contiguous' needs the number of parts: dirichlet:0.1,groups=2,contiguous."
        )
    if groups and groups > K:
        raise UsageError("E103", f"groups={groups} needs as many clients; there are {K}.")
    sizes = [len(part) for part in np.array_split(np.arange(K), groups or 1)]
    slices = _slices(y, sizes, "contiguous" in skew.options)
    least = _least(skew, alpha, C, slices, sizes)
    if groups is None and K > GROUP:
        found = _draw(alpha, y, slices[0], K, least, rng)
        if min(found.sizes) >= least:
            return found
        sizes = [len(part) for part in np.array_split(np.arange(K), max(2, K // GROUP))]
        slices = _slices(y, sizes, contiguous=False)
        least = min(least, *(len(rows) // k for rows, k in zip(slices, sizes)))
    drawn = [repaired(_draw(alpha, y, rows, k, least, rng), least) for rows, k in zip(slices, sizes)]
    return Index.of([rows for index in drawn for rows in index]) if len(drawn) > 1 else drawn[0]


def _least(skew: Skew, alpha: float, C: int, slices: list[np.ndarray], sizes: list[int]) -> int:
    """The smallest client's samples: `min`, or FLea's choice as far as there are samples enough."""
    K = sum(sizes)
    feasible = min(len(rows) // k for rows, k in zip(slices, sizes))
    wanted = skew.option("min")
    if wanted and wanted > feasible:
        raise DataError(
            "E406",
            f"{K} clients of at least {wanted} samples need {wanted * K:,}; there are {sum(map(len, slices)):,}. "
            f"Feasible: min={feasible}.",
        )
    return wanted or min(feasible, 3 if alpha <= 0.1 and K > GROUP else C)


def _slices(y: np.ndarray, sizes: list[int], contiguous: bool) -> list[np.ndarray]:
    """Rows for groups of so many clients: with equal classes, or consecutive parts of the file."""
    if len(sizes) == 1:
        return [np.arange(len(y))]
    if contiguous:
        cuts = np.cumsum(sizes)[:-1] * len(y) // sum(sizes)
        return np.split(np.arange(len(y)), cuts)
    order = np.argsort(y, kind="stable")
    return [np.sort(order[g :: len(sizes)]) for g in range(len(sizes))]


def _draw(alpha: float, y: np.ndarray, rows: np.ndarray, K: int, least: int, rng: np.random.Generator) -> Index:
    """The first of a bounded number of draws in which everybody has `least`, or the one with the largest smallest."""
    decks = [rows[y[rows] == c] for c in range(int(y.max()) + 1)]
    best, best_sizes = [], np.full(K, -1)
    for _ in range(int(np.clip(WORK // (K * len(decks)), 1, TRIES))):
        dealt, sizes = _once(alpha, decks, len(rows) / K, K, rng)
        if sizes.min() > best_sizes.min():
            best, best_sizes = dealt, sizes
        if best_sizes.min() >= least:
            break
    owner = np.concatenate([np.repeat(np.arange(K), counts) for _, counts in best])
    order = np.argsort(owner, kind="stable")
    return Index(np.concatenate([deck for deck, _ in best])[order], np.concatenate([[0], np.cumsum(best_sizes)]))


def _once(
    alpha: float, decks: list[np.ndarray], even: float, K: int, rng: np.random.Generator
) -> tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray]:
    """(for each class its shuffled rows and how many of them each client gets, sizes [K])."""
    dealt, held = [], np.zeros(K, dtype=np.int64)
    for deck in decks:
        deck = rng.permutation(deck)
        share = rng.dirichlet(np.full(K, alpha)) * (held < even)
        if not share.sum() > 0:  # all that is left underflowed: equal shares for those that may still have some
            share = (held < even).astype(float)
        share = share / share.sum()
        cuts = (np.cumsum(share)[:-1] * len(deck)).astype(np.int64)
        counts = np.diff(cuts, prepend=0, append=len(deck))
        held += counts
        dealt.append((deck, counts))
    return dealt, held


def repaired(index: Index, least: int) -> Index:
    """Samples move from the largest client to those that have fewer than `least`; needs K * least rows in all."""
    sizes = index.sizes
    if sizes.min() >= least:
        return _sorted(index)
    rows = list(index)
    for k in np.flatnonzero(sizes < least):
        while sizes[k] < least:
            giver = int(np.argmax(sizes))
            count = max(1, min(int(least - sizes[k]), int(sizes[giver] - least) // 2))
            rows[k], rows[giver] = np.concatenate([rows[k], rows[giver][-count:]]), rows[giver][:-count]
            sizes[k] += count
            sizes[giver] -= count
    return _sorted(Index.of(rows))


def _sorted(index: Index) -> Index:
    """Every client's rows ascending."""
    return Index(index.rows[np.lexsort((index.rows, index.owner))], index.offsets)
