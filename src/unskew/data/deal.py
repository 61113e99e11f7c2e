"""The global test set dealt to clients, so that one pass over it scores both the model and every client.

For each class with n test rows, client k's quota is n * (its training samples of the class) / (everybody's); quotas
are rounded by largest remainder, ties by lot. Disjoint; a row whose class somebody trains on goes to somebody.
Letters: N test rows, K clients, C classes.
"""

from __future__ import annotations

import numpy as np

from unskew.data.index import Index


def deal_tests(y_test: np.ndarray, counts_KC: np.ndarray, rng: np.random.Generator) -> Index:
    """Test rows of every client. Rows of a class that nobody trains on stay nobody's."""
    owner = np.full(len(y_test), -1, dtype=np.int64)
    for c in range(counts_KC.shape[1]):
        rows = rng.permutation(np.flatnonzero(y_test == c))
        holders = np.flatnonzero(counts_KC[:, c])
        if len(holders) and len(rows):
            owner[rows] = np.repeat(holders, _rounded(len(rows), counts_KC[holders, c].astype(np.int64), rng))
    return Index.by_owner(owner, len(counts_KC))


def _rounded(n: int, weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Whole numbers that add up to n, in proportion to weights > 0; exact, in integers."""
    whole, rest = np.divmod(n * weights, weights.sum())
    missing = n - int(whole.sum())
    if missing:
        lot = rest + rng.random(len(rest))  # below 1, so it only decides between equal remainders
        whole[np.argpartition(-lot, missing - 1)[:missing]] += 1
    return whole
