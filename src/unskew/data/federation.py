"""A set dealt out to clients.

All samples are in one array, and a client is a list of row numbers: memory grows with the samples, not with the clients.
Letters: N samples, K clients, C classes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from unskew.data import scaling
from unskew.data.checks import check_labels, check_lengths, check_rows
from unskew.data.dataset import strata
from unskew.data.index import Index
from unskew.data.intake.notes import Intake
from unskew.data.layout import Layout
from unskew.data.target import Target, check_targets, edges, names
from unskew.errors import DataError, printable

SUMMARY_CLIENTS = 2000
"""Clients that `summary` lists at most."""


@dataclass(frozen=True)
class Federation:
    """A set and which of its rows each client holds.

    x, y, x_test, y_test, classes, target: as in `Dataset`.
    train, val, test: `train[k]` and `val[k]` are rows of x, `test[k]` rows of x_test; any of them may be empty. val has
    no clients at all if nothing is held back.
    skew: the text by which the set was dealt out. names: of the clients, or None for `client-0` and so on. Control characters in names are escaped.
    natural: whether clients come from a column of the data and every test row belongs to one of them.
    mean, std: one number per channel, by which samples can be standardised; None if they are already, or never are.
    columns: facts per row of x. reserved: rows of x that no client holds, because the server keeps them for itself.
    intake, applied, layout: as in `Dataset`.

    Raises DataError: E403 for rows and lengths, E404 for labels.
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
    intake: Intake | None = None
    applied: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    target: Target | None = None
    layout: Layout | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", printable(str(self.name)))
        object.__setattr__(self, "classes", tuple(map(printable, map(str, self.classes))))
        if self.names:
            object.__setattr__(self, "names", tuple(map(printable, map(str, self.names))))
        check_lengths(self.name, "training", self.x, self.y, {})
        check_lengths(self.name, "test", self.x_test, self.y_test, {})
        if not self.clients or not len(self.train.rows):
            raise DataError("E403", f"{self.name}: no client holds a training sample.")
        check_rows(self.name, self.layout, self.shape, self.y.shape[1:] if self.masks else ())
        if self.target:
            check_targets(self.name, self.y, self.y_test)
        else:
            check_labels(self.name, self.y, self.y_test, self.n_classes, self.shape, self.layout)
        for part, index, n in (
            ("train", self.train, len(self.y)),
            ("val", self.val, len(self.y)),
            ("test", self.test, len(self.y_test)),
        ):
            if len(index) not in ((0, self.clients) if part == "val" else (self.clients,)):
                raise DataError(
                    "E403",
                    f"{self.name}: {self.clients} clients, but {len(index)} lists of {part} rows; give one per client.",
                )
            if len(index.rows) and not 0 <= index.rows.min() <= index.rows.max() < n:
                raise DataError("E403", f"{self.name}: {part} rows lie outside 0 to {n - 1}.")

    @property
    def clients(self) -> int:
        """K."""
        return len(self.train)

    @property
    def K(self) -> int:
        """The number of clients, by the letter that formulas use."""
        return self.clients

    @property
    def n_classes(self) -> int:
        """C, which is how many outputs a model has: 1 for a target."""
        return len(self.classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])

    @cached_property
    def sizes(self) -> np.ndarray:
        """Training samples of every client, int64 [K]."""
        return self.train.sizes

    @property
    def masks(self) -> bool:
        """Whether every pixel or token has a label, instead of every sample."""
        return self.y.ndim > 1 and not self.several

    @property
    def tokens(self) -> bool:
        """Whether every token has a label, or -1: a case of masks."""
        return self.masks and self.y.ndim == 2 and len(self.shape) == 1

    @property
    def several(self) -> bool:
        """Whether a sample has any number of labels, instead of one class."""
        return self.y.dtype.kind == "b"

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """What labels are counted by: the classes, or the tenths of a target."""
        return names(edges(self.y)) if self.target else self.classes

    @cached_property
    def label_counts(self) -> np.ndarray:
        """Training samples of every client and class, int64 [K, C], or tenth of a target; with masks, their pixels. Of
        several labels, the samples that have each, which may be more or fewer than there are."""
        if self.masks:
            return np.array([self._pixels(rows) for rows in self.train])
        if self.several:
            return np.array([self.y[rows].sum(0) for rows in self.train], dtype=np.int64)
        groups = len(self.groups)
        flat = self.train.owner * groups + strata(self.y)[self.train.rows]
        return np.bincount(flat, minlength=self.clients * groups).reshape(self.clients, groups)

    def _pixels(self, rows: np.ndarray) -> np.ndarray:
        """Pixels, or tokens, of these samples by class, int64 [C]."""
        counts = np.zeros(self.n_classes, np.int64)
        for row in rows:
            labels = self.y[row].ravel()
            counts += np.bincount(labels[labels >= 0] if self.tokens else labels, minlength=self.n_classes)
        return counts

    @property
    def test_sizes(self) -> np.ndarray:
        """How many test samples each client has, int64 [K], also where they are not here."""
        return self.test.sizes

    @property
    def common_test(self) -> int:
        """How many samples the common test set has, also where they are not here; 0 where clients alone have some."""
        return len(self.y_test)

    def name_of(self, k: int) -> str:
        """The name of client k."""
        return self.names[k] if self.names else f"client-{k}"

    def pooled(self) -> Federation:
        """The federation with one client that holds all training rows, for centralised training."""
        return replace(
            self,
            train=Index.of([np.unique(self.train.rows)]),
            val=Index.of([np.unique(self.val.rows)]),
            test=Index.of([np.arange(len(self.y_test))]),
            skew="pooled",
            natural=False,
            names=("everything",),
        )

    def from_natural(self, x: np.ndarray) -> np.ndarray:
        """Samples [N, ...] in natural units, scaled as this federation's are."""
        return x if self.applied is None else scaling.applied(x, self.applied, self.layout)

    def summary(self) -> dict[str, Any]:
        """What federation.json holds; its lists are of the first 2,000 clients at most."""
        shown = slice(0, SUMMARY_CLIENTS)
        return {
            "name": self.name,
            "classes": list(self.groups),
            "clients": self.clients,
            "names": [self.name_of(k) for k in range(min(self.clients, SUMMARY_CLIENTS))],
            "sizes": {
                "train": self.sizes[shown].tolist(),
                "val": self.val.sizes[shown].tolist(),
                "test": self.test_sizes[shown].tolist(),
            },
            "labels": self.label_counts[shown].tolist(),
            "unit": "tokens" if self.tokens else "pixels" if self.masks else "samples",
            "test": self.common_test,
            "skew": self.skew,
            "shape": list(self.shape),
            **({"layout": self.layout.as_json()} if self.layout else {}),
            **({"mean": list(self.applied[0]), "std": list(self.applied[1])} if self.applied else {}),
            **({"task": "multilabel"} if self.several else {}),
            **({"task": "regression", "target": asdict(self.target)} if self.target else {}),
            **({"understood": [list(note) for note in self.intake.notes]} if self.intake else {}),
        }
