"""The global test set dealt to clients, so that one pass over it scores both the model and every client.

For each class with n test rows, client k's quota is n * (its training samples of the class) / (all clients'); quotas
are rounded by largest remainder, ties at random. No row is dealt twice, and every row of a class that somebody trains on
is dealt.
Letters: N test rows, K clients, C classes.
"""

from __future__ import annotations

import numpy as np

from unskew.data.index import Index


def deal_tests(y_test: np.ndarray, counts_KC: np.ndarray, rng: np.random.Generator) -> Index:
    """The test rows of every client; rows of a class that no client trains on are left out.

    y_test: classes [N]. counts_KC: training samples of every client and class.
    """
    owner = np.full(len(y_test), -1, dtype=np.int64)
    for c in range(counts_KC.shape[1]):
        rows = rng.permutation(np.flatnonzero(y_test == c))
        holders = np.flatnonzero(counts_KC[:, c])
        if len(holders) and len(rows):
            owner[rows] = np.repeat(holders, rounded(len(rows), counts_KC[holders, c].astype(np.int64), rng))
    return Index.by_owner(owner, len(counts_KC))


def rounded(n: int, weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Whole numbers that add up to n, in proportion to whole weights above 0, computed exactly in integers.

    What is missing after rounding down goes to the largest remainders, one each, ties at random.
    """
    whole, rest = np.divmod(n * weights, weights.sum())
    missing = n - int(whole.sum())
    if missing:
        order = rest + rng.random(len(rest))  # the random part is below 1, so it decides only between equal remainders
        whole[np.argpartition(-order, missing - 1)[:missing]] += 1
    return whole
