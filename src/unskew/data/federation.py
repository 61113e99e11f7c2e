"""A set of samples, and the same set dealt out to clients.

All samples lie in one array; a client is a list of row numbers. Memory grows with the samples, not with the clients.
Letters: N samples, K clients, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from unskew.errors import DataError

SUMMARY_CLIENTS = 2000


class Index(Sequence):
    """Row numbers of every client, in one array: `index[k]` is a view."""

    def __init__(self, rows: np.ndarray, offsets: np.ndarray):
        self.rows, self.offsets = rows, offsets

    @staticmethod
    def of(lists: Sequence[np.ndarray]) -> Index:
        offsets = np.cumsum([0, *map(len, lists)], dtype=np.int64)
        rows = np.concatenate([np.asarray(r, dtype=np.int64) for r in lists]) if lists else np.zeros(0, np.int64)
        return Index(rows, offsets)

    @staticmethod
    def by_owner(owner_N: np.ndarray, clients: int) -> Index:
        """From each row's client; -1 is nobody's. Rows of a client stay in their order."""
        rows = np.argsort(owner_N, kind="stable").astype(np.int64)
        rows = rows[np.searchsorted(owner_N[rows], 0) :]
        counts = np.bincount(owner_N[owner_N >= 0], minlength=clients)
        return Index(rows, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, k: Any) -> np.ndarray:
        if not 0 <= k < len(self):
            raise IndexError(k)
        return self.rows[self.offsets[k] : self.offsets[k + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[k] for k in range(len(self)))

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.offsets)


@dataclass(frozen=True)
class Dataset:
    """A set before it is dealt out. x [N, ...] float32, channels first, in natural units (images: [0, 1]); y int64.

    columns: further facts per training row (subject, domain), by which clients can be formed.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: tuple[str, ...]
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    test_columns: dict[str, np.ndarray] = field(default_factory=dict)
    labels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    source: str = ""

    def __post_init__(self) -> None:
        for part, x, y in (("training", self.x, self.y), ("test", self.x_test, self.y_test)):
            if len(x) != len(y):
                raise DataError(
                    "E403", f"{self.name}: {len(x)} {part} samples but {len(y)} labels; give one label a sample."
                )
        if not len(self.y):
            raise DataError("E403", f"{self.name} has no training samples.")
        both = np.concatenate([self.y, self.y_test])
        if both.min() < 0 or both.max() >= len(self.classes):
            raise DataError(
                "E404",
                f"{self.name}: labels run from {both.min()} to {both.max()}; {len(self.classes)} classes need 0 to {len(self.classes) - 1}.",
            )
        for part, x in (("training", self.x), ("test", self.x_test)):
            if not isinstance(x, np.memmap) and len(x) and not np.isfinite(x.sum(dtype=np.float64)):
                row = int(np.argmax(~np.isfinite(x.reshape(len(x), -1)).all(1)))
                raise DataError("E405", f"{self.name}: {part} sample {row} holds NaN or infinity; mend or remove it.")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])

    def standardised(self) -> Dataset:
        """(x - mean) / std per channel, by the set's own constants."""
        if self.mean is None or self.std is None:
            return self
        shape = (1, -1, *[1] * (self.x.ndim - 2))
        mean, std = np.reshape(self.mean, shape).astype(np.float32), np.reshape(self.std, shape).astype(np.float32)
        return replace(self, x=(self.x - mean) / std, x_test=(self.x_test - mean) / std, mean=None, std=None)


@dataclass(frozen=True)
class Federation:
    """A set dealt out to K clients. `train[k]` are rows of x, `test[k]` rows of x_test.

    natural: clients come from a column of the data, so that a test row has a client of its own.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: tuple[str, ...]
    train: Index
    test: Index
    skew: str
    natural: bool = False
    names: tuple[str, ...] | None = None

    @property
    def clients(self) -> int:
        return len(self.train)

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])

    @cached_property
    def sizes(self) -> np.ndarray:
        return self.train.sizes

    @cached_property
    def label_counts(self) -> np.ndarray:
        """[K, C] training samples."""
        owner = np.repeat(np.arange(self.clients), self.sizes)
        flat = owner * self.n_classes + self.y[self.train.rows]
        return np.bincount(flat, minlength=self.clients * self.n_classes).reshape(self.clients, self.n_classes)

    def name_of(self, k: int) -> str:
        return self.names[k] if self.names else f"client-{k}"

    def pooled(self) -> Federation:
        """One client that holds all training rows: centralised training."""
        rows = np.unique(self.train.rows)
        everything = Index.of([np.arange(len(self.y_test))])
        return replace(
            self, train=Index.of([rows]), test=everything, skew="pooled", natural=False, names=("everything",)
        )

    def summary(self) -> dict[str, Any]:
        """What federation.json holds; above 2,000 clients the lists hold the first 2,000."""
        shown = slice(0, SUMMARY_CLIENTS)
        return {
            "name": self.name,
            "classes": list(self.classes),
            "clients": self.clients,
            "names": [self.name_of(k) for k in range(min(self.clients, SUMMARY_CLIENTS))],
            "sizes": {"train": self.sizes[shown].tolist(), "val": [], "test": self.test.sizes[shown].tolist()},
            "labels": self.label_counts[shown].tolist(),
            "test": len(self.y_test),
            "skew": self.skew,
            "shape": list(self.shape),
        }
