"""Which rows belong to which client, and the interface of the partitions in `skews/` that decide it.

An `Index` holds the rows of any number of clients in two arrays. Every partition terminates for every
request, and only `pathological` with a size gives one row to two clients.
Letters: R rows dealt out (all clients together), N samples, K clients, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from unskew.data.samples.dataset import largest_remainder
from unskew.errors import DataError


@dataclass(frozen=True, eq=False)
class Index:
    """`index[k]` is a view of client k's row numbers: rows[offsets[k] : offsets[k + 1]]."""

    rows: np.ndarray
    """int64 [R]"""
    offsets: np.ndarray
    """int64 [K + 1], from 0 to R"""

    @staticmethod
    def of(lists: Sequence[np.ndarray]) -> Index:
        """An index from one array of row numbers per client."""
        offsets = np.cumsum([0, *map(len, lists)], dtype=np.int64)
        rows = (
            np.concatenate([np.asarray(r, dtype=np.int64) for r in lists]) if lists else np.zeros(0, np.int64)
        )
        return Index(rows, offsets)

    @staticmethod
    def by_owner(owner_N: np.ndarray, clients: int) -> Index:
        """An index from the client of each row, or -1 for no client. Rows of a client keep their order."""
        rows = np.argsort(owner_N, kind="stable").astype(np.int64)
        rows = rows[np.searchsorted(owner_N[rows], 0) :]
        counts = np.bincount(owner_N[owner_N >= 0], minlength=clients)
        return Index(rows, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))

    @staticmethod
    def empty(clients: int) -> Index:
        """An index without rows."""
        return Index(np.zeros(0, np.int64), np.zeros(clients + 1, np.int64))

    def within(self, rows: np.ndarray) -> Index:
        """The index with each row number replaced by its place among these, which are ascending and include
        all."""
        return Index(np.searchsorted(rows, self.rows), self.offsets)

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
        """The number of rows of each client, int64 [K]."""
        return np.diff(self.offsets)

    @property
    def owner(self) -> np.ndarray:
        """The client of each of `rows`, int64 [R]."""
        return np.repeat(np.arange(len(self)), self.sizes)


@dataclass(frozen=True)
class Request:
    """The samples to deal out and the number of clients.

    y: classes [N]. samples: mean number of samples of a client, or None to deal all. columns: facts per row,
    [N] each.
    """

    y: np.ndarray
    clients: int
    samples: int | None = None
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def classes(self) -> int:
        """C, one more than the largest label."""
        return int(self.y.max()) + 1


class Partition:
    """A way to deal out a set. Subclasses are frozen dataclasses of their settings, see
    unskew.formats.specs."""

    name: ClassVar[str] = ""
    value: ClassVar[tuple[str, ...]] = ()
    example: ClassVar[str] = ""
    by_class: ClassVar[bool] = True
    """Whether samples need one label each."""
    own_clients: ClassVar[bool] = False
    """Whether the data define the number of clients."""

    def deal(self, request: Request, rng: np.random.Generator) -> Index:
        """The rows of every client, from clients * samples rows that are drawn first, by class.

        Raises DataError (E103) for a request that is infeasible.
        """
        rows = rows_to_deal(request, rng)
        index = self.deal_all(replace(request, y=request.y[rows]), rng)
        return replace(index, rows=rows[index.rows])

    def deal_all(self, request: Request, rng: np.random.Generator) -> Index:
        """The rows of every client, from all rows of the request."""
        raise NotImplementedError

    def require_classes(self, count: int, request: Request) -> None:
        """Raises DataError (E103) if the set has fewer classes than `count`."""
        if count > request.classes:
            text = f"skew '{self.name}' asks for {count} classes per client"
            raise DataError("E103", f"{text}; the set has {request.classes}. Feasible: {request.classes}.")


def rows_to_deal(request: Request, rng: np.random.Generator) -> np.ndarray:
    """The rows that are dealt out, ascending: all of them, or clients * samples. Raises DataError (E103)
    if there are too few."""
    n, K, samples = len(request.y), request.clients, request.samples
    if samples is None:
        return np.arange(n)
    if samples * K > n:
        feasible = f"samples={n // K}" if n >= K else f"at most {n:,} clients"
        text = f"{K} clients of {samples} samples need {samples * K:,}; the set has {n:,}"
        raise DataError("E103", f"{text}. Feasible: {feasible}.")
    return draw_rows(request.y, samples * K, rng)


def draw_rows(y: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """`size` random rows in the proportions of the classes, ascending. y: classes [N]."""
    counts = np.bincount(y)
    sizes = largest_remainder(counts / counts.sum() * size, counts)
    return np.sort(np.concatenate([rng.permutation(np.flatnonzero(y == c))[:n] for c, n in enumerate(sizes)]))


def split_among_owners(client_classes: list[np.ndarray], request: Request, rng: np.random.Generator) -> Index:
    """Each class's shuffled rows, split evenly among the clients that own the class.

    client_classes: the classes of every client. The rows of a class without an owner are left out.
    """
    clients = np.repeat(np.arange(len(client_classes)), [len(classes) for classes in client_classes])
    classes = np.concatenate(client_classes)
    owner = np.full(len(request.y), -1, dtype=np.int64)
    for c in range(request.classes):
        owners = clients[classes == c]
        if len(owners):
            rows = rng.permutation(np.flatnonzero(request.y == c))
            sizes = len(rows) // len(owners) + (np.arange(len(owners)) < len(rows) % len(owners))
            owner[rows] = np.repeat(owners, sizes)
    return Index.by_owner(owner, len(client_classes))
