"""A set dealt out to clients.

All samples lie in one array; a client is a list of row numbers. Memory grows with the samples, not with the clients.
Letters: N samples, K clients, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from unskew.data.dataset import Dataset, check_labels
from unskew.data.index import Index
from unskew.errors import DataError

__all__ = ["SUMMARY_CLIENTS", "Dataset", "Federation", "Index"]

SUMMARY_CLIENTS = 2000


@dataclass(frozen=True)
class Federation:
    """`train[k]` and `val[k]` are rows of x, `test[k]` rows of x_test; any of them may be empty.

    natural: clients come from a column of the data, so that every test row has a client of its own. val without
    clients: nothing is held back. mean, std: constants of x that have not been taken off. columns: per row of x.
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
    val: Index = field(default_factory=lambda: Index.empty(0))
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    reserved: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Rows of x that no client holds: the server keeps them for itself."""

    def __post_init__(self) -> None:
        for part, x, y in (("training", self.x, self.y), ("test", self.x_test, self.y_test)):
            if len(x) != len(y):
                raise DataError(
                    "E403", f"{self.name}: {len(x)} {part} samples but {len(y)} labels; give one label a sample."
                )
        if not self.clients or not len(self.train.rows):
            raise DataError("E403", f"{self.name}: no client holds a training sample.")
        check_labels(self.name, self.y, self.y_test, self.n_classes, self.shape)
        for part, index, n in (
            ("train", self.train, len(self.y)),
            ("val", self.val, len(self.y)),
            ("test", self.test, len(self.y_test)),
        ):
            if len(index) not in ((0, self.clients) if part == "val" else (self.clients,)):
                raise DataError(
                    "E403",
                    f"{self.name}: {self.clients} clients, but {len(index)} lists of {part} rows; give one each.",
                )
            if len(index.rows) and not 0 <= index.rows.min() <= index.rows.max() < n:
                raise DataError("E403", f"{self.name}: {part} rows lie outside 0 to {n - 1}.")

    @property
    def clients(self) -> int:
        return len(self.train)

    @property
    def K(self) -> int:
        return self.clients

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])

    @cached_property
    def sizes(self) -> np.ndarray:
        """Training samples, int64 [K]."""
        return self.train.sizes

    @property
    def masks(self) -> bool:
        """Whether every pixel has a label, rather than every sample."""
        return self.y.ndim > 1

    @cached_property
    def label_counts(self) -> np.ndarray:
        """Training samples by class, or pixels by class where samples have masks, int64 [K, C]."""
        if self.masks:
            pixels = (
                np.array([np.bincount(self.y[i].ravel(), minlength=self.n_classes) for i in k]) for k in self.train
            )
            return np.array([p.sum(0) if len(p) else np.zeros(self.n_classes, np.int64) for p in pixels])
        flat = self.train.owner * self.n_classes + self.y[self.train.rows]
        return np.bincount(flat, minlength=self.clients * self.n_classes).reshape(self.clients, self.n_classes)

    def name_of(self, k: int) -> str:
        return self.names[k] if self.names else f"client-{k}"

    def pooled(self) -> Federation:
        """One client that holds all training rows: centralised training."""
        return replace(
            self,
            train=Index.of([np.unique(self.train.rows)]),
            val=Index.of([np.unique(self.val.rows)]),
            test=Index.of([np.arange(len(self.y_test))]),
            skew="pooled",
            natural=False,
            names=("everything",),
        )

    def summary(self) -> dict[str, Any]:
        """What federation.json holds; above 2,000 clients the lists hold the first 2,000."""
        shown = slice(0, SUMMARY_CLIENTS)
        return {
            "name": self.name,
            "classes": list(self.classes),
            "clients": self.clients,
            "names": [self.name_of(k) for k in range(min(self.clients, SUMMARY_CLIENTS))],
            "sizes": {
                "train": self.sizes[shown].tolist(),
                "val": self.val.sizes[shown].tolist(),
                "test": self.test.sizes[shown].tolist(),
            },
            "labels": self.label_counts[shown].tolist(),
            "unit": "pixels" if self.masks else "samples",
            "test": len(self.y_test),
            "skew": self.skew,
            "shape": list(self.shape),
        }
