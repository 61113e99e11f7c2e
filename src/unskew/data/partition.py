"""What every way of dealing a set out to clients is, in `skews/`.

Every partition terminates for every request, and none but `pathological` with a size gives one row to two clients.
Letters: N samples, K clients, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from unskew.data.index import Index
from unskew.data.rounding import largest_remainder
from unskew.errors import DataError


@dataclass(frozen=True)
class Request:
    """What is dealt out, and to how many.

    y: classes [N]. samples: how many a client has on average, or None for all there are. columns: facts per row, [N] each.
    """

    y: np.ndarray
    clients: int
    samples: int | None = None
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def classes(self) -> int:
        """C, from the largest label."""
        return int(self.y.max()) + 1


class Partition:
    """One way to deal a set out. Subclasses are frozen dataclasses of their settings, see unskew.specs."""

    name: ClassVar[str] = ""
    value: ClassVar[tuple[str, ...]] = ()
    example: ClassVar[str] = ""
    by_class: ClassVar[bool] = True
    """Whether it needs one label per sample."""
    own_clients: ClassVar[bool] = False
    """Whether the data say how many clients there are."""

    def deal(self, request: Request, rng: np.random.Generator) -> Index:
        """The rows of every client, from clients * samples rows that are drawn first, by class.

        Raises DataError (E406) for what cannot be dealt out.
        """
        rows = pool(request, rng)
        index = self.deal_all(replace(request, y=request.y[rows]), rng)
        return replace(index, rows=rows[index.rows])

    def deal_all(self, request: Request, rng: np.random.Generator) -> Index:
        """The rows of every client, from all rows of the request."""
        raise NotImplementedError

    def require_classes(self, count: int, request: Request) -> None:
        """Raises DataError (E406) if the set has fewer classes than `count`."""
        if count > request.classes:
            raise DataError(
                "E406",
                f"skew '{self.name}' asks for {count} classes per client; the set has {request.classes}. "
                f"Feasible: {request.classes}.",
            )


def pool(request: Request, rng: np.random.Generator) -> np.ndarray:
    """The rows that are dealt out, ascending: all of them, or clients * samples. Raises DataError (E406)."""
    n, K, samples = len(request.y), request.clients, request.samples
    if samples is None:
        return np.arange(n)
    if samples * K > n:
        raise DataError(
            "E406",
            f"{K} clients of {samples} samples need {samples * K:,}; the set has {n:,}. "
            f"Feasible: {f'samples={n // K}' if n >= K else f'at most {n:,} clients'}.",
        )
    return drawn(request.y, samples * K, rng)


def drawn(y: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """`size` random rows in the proportions of the classes, ascending. y: classes [N]."""
    counts = np.bincount(y)
    sizes = largest_remainder(counts / counts.sum() * size, counts)
    return np.sort(np.concatenate([rng.permutation(np.flatnonzero(y == c))[:n] for c, n in enumerate(sizes)]))


def split_among_owners(owned: list[np.ndarray], request: Request, rng: np.random.Generator) -> Index:
    """Each class's shuffled rows, split evenly among the clients that own it. owned: the classes of every client.

    The rows of a class that nobody owns are left out.
    """
    clients = np.repeat(np.arange(len(owned)), [len(classes) for classes in owned])
    classes = np.concatenate(owned)
    owner = np.full(len(request.y), -1, dtype=np.int64)
    for c in range(request.classes):
        owners = clients[classes == c]
        if len(owners):
            rows = rng.permutation(np.flatnonzero(request.y == c))
            sizes = len(rows) // len(owners) + (np.arange(len(owners)) < len(rows) % len(owners))
            owner[rows] = np.repeat(owners, sizes)
    return Index.by_owner(owner, len(owned))
