"""Which rows belong to which client, in two arrays for any number of clients.

Letters: R rows dealt out (all clients together), N rows of the set, K clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Index:
    """`index[k]` is a view of client k's row numbers: rows[offsets[k] : offsets[k + 1]]."""

    rows: np.ndarray
    """int64 [R]"""
    offsets: np.ndarray
    """int64 [K + 1], from 0 to R"""

    @staticmethod
    def of(lists: Sequence[np.ndarray]) -> Index:
        """From one array of row numbers per client."""
        offsets = np.cumsum([0, *map(len, lists)], dtype=np.int64)
        rows = np.concatenate([np.asarray(r, dtype=np.int64) for r in lists]) if lists else np.zeros(0, np.int64)
        return Index(rows, offsets)

    @staticmethod
    def by_owner(owner_N: np.ndarray, clients: int) -> Index:
        """From the client of each row, where -1 means no client. Rows of a client keep their order."""
        rows = np.argsort(owner_N, kind="stable").astype(np.int64)
        rows = rows[np.searchsorted(owner_N[rows], 0) :]
        counts = np.bincount(owner_N[owner_N >= 0], minlength=clients)
        return Index(rows, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))

    @staticmethod
    def empty(clients: int) -> Index:
        """No client holds any row."""
        return Index(np.zeros(0, np.int64), np.zeros(clients + 1, np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, k: int) -> np.ndarray:
        if not 0 <= k < len(self):
            raise IndexError(k)
        return self.rows[self.offsets[k] : self.offsets[k + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[k] for k in range(len(self)))

    @property
    def sizes(self) -> np.ndarray:
        """How many rows each client holds, int64 [K]."""
        return np.diff(self.offsets)

    @property
    def owner(self) -> np.ndarray:
        """The client of each of `rows`, int64 [R]."""
        return np.repeat(np.arange(len(self)), self.sizes)
