"""A data set dealt to clients, or the facts known about one with samples on other machines.

All samples of a `Federation` are in one array, and a client is a list of row numbers: memory grows with the
samples, not with the clients. A `RemoteFederation` has no samples; its clients are known by the counts that
they report.
Letters: N samples, K clients, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from unskew.data.clients.partition import Index
from unskew.data.samples import scaling
from unskew.data.samples.dataset import (
    SampleForm,
    Target,
    check_labels,
    check_lengths,
    check_rows,
    check_targets,
    strata,
    target_shape,
    tenth_edges,
    tenth_names,
)
from unskew.data.samples.reading_notes import Intake, Note, quantity
from unskew.data.storage.rows_on_disk import HeldRows, Rows, is_streamed
from unskew.errors import DataError, printable
from unskew.formats.input_layout import Layout

SUMMARY_CLIENTS = 2000
"""Maximal number of clients that `summary` lists."""


@dataclass(frozen=True, repr=False)
class Federation(SampleForm):
    """A data set and the rows that each client holds.

    x, y, x_test, y_test, classes, target: as in `Dataset`.
    train, val, test: `train[k]` and `val[k]` are rows of x, `test[k]` rows of x_test; any of them may be
    empty. val has no clients at all without validation samples.
    skew: the text by which the set was dealt out. names: the clients' names, or None for `client-0` and so
    on. Control characters in names are escaped.
    natural: whether clients come from a column of the data and every test row belongs to one of them.
    mean, std: one number per channel, by which samples can be standardised; None if they already are, or
    never are.
    columns, test_columns, group_column: as in `Dataset`.
    reserved: rows of x that no client holds, because the server keeps them.
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
    test_columns: dict[str, np.ndarray] = field(default_factory=dict)
    group_column: str = ""

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
            check_targets(self.name, self.y, self.y_test, self.classes)
        else:
            check_labels(self.name, self.y, self.y_test, self.n_classes, self.shape, self.layout)
        for part, index, n in (
            ("train", self.train, len(self.y)),
            ("val", self.val, len(self.y)),
            ("test", self.test, len(self.y_test)),
        ):
            if len(index) not in ((0, self.clients) if part == "val" else (self.clients,)):
                text = f"{self.clients} clients, but {len(index)} lists of {part} rows"
                raise DataError("E403", f"{self.name}: {text}; give one per client.")
            if len(index.rows) and not 0 <= index.rows.min() <= index.rows.max() < n:
                raise DataError("E403", f"{self.name}: {part} rows lie outside 0 to {n - 1}.")

    def __repr__(self) -> str:
        """As of a Dataset, with the clients."""
        samples = f"{quantity(int(self.sizes.sum()), 'training sample')}, divided by {self.skew}"
        return f"{super().__repr__()[:-1]}\n clients  {self.clients:,} with {samples}>"

    @property
    def group_ids(self) -> np.ndarray | None:
        """The group of each row of x, [N]; None if samples are independent."""
        return self.columns.get(self.group_column)

    @property
    def test_group_ids(self) -> np.ndarray | None:
        """The group of each row of x_test, [N]; None if they are unknown or samples are independent."""
        return self.test_columns.get(self.group_column)

    @property
    def clients(self) -> int:
        """K."""
        return len(self.train)

    @property
    def n_classes(self) -> int:
        """C, the number of outputs of a model: of classes or targets."""
        return len(self.classes)

    @cached_property
    def sizes(self) -> np.ndarray:
        """Training samples of every client, int64 [K]."""
        return self.train.sizes

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """The groups that labels are counted by: the classes, or the tenths of a target."""
        return tenth_names(tenth_edges(self.y)) if self.target else self.classes

    @cached_property
    def label_counts(self) -> np.ndarray:
        """Training samples of every client and class, or tenth of a target, int64 [K, C]; with masks, their
        pixels.

        A sample with several labels counts for each of them, and one without labels for none.
        """
        if self.masks:
            return np.array([self._pixels(rows) for rows in self.train])
        if self.several:
            return np.array([self.y[rows].sum(0) for rows in self.train], dtype=np.int64)
        groups = len(self.groups)
        flat = self.train.owner * groups + strata(self.y)[self.train.rows]
        return np.bincount(flat, minlength=self.clients * groups).reshape(self.clients, groups)

    def _pixels(self, rows: np.ndarray) -> np.ndarray:
        """The number of pixels, or tokens, of each class in these samples, int64 [C]."""
        counts = np.zeros(self.n_classes, np.int64)
        for row in rows:
            labels = self.y[row].ravel()
            counts += np.bincount(labels[labels >= 0] if self.tokens else labels, minlength=self.n_classes)
        return counts

    @property
    def test_sizes(self) -> np.ndarray:
        """Test samples of every client, int64 [K], also if they are on other machines."""
        return self.test.sizes

    @property
    def common_test(self) -> int:
        """Samples of the common test set, also if it is on another machine; 0 if only clients have test
        samples."""
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

    def with_held_samples(self, again: Callable[[], Federation]) -> Federation:
        """The federation with no more training samples in memory than clients and the server hold; others are
        read again if they are indexed. Unchanged if its samples are an array, or are read from a disk.

        again: returns the federation with all samples.
        """
        if is_streamed(self.x) or not isinstance(self.x, Rows):
            return self
        held = np.unique(np.concatenate([self.train.rows, self.val.rows, self.reserved]))
        x_test = self.x_test
        if isinstance(x_test, Rows) and x_test.rows is not None:
            x_test = x_test[:]  # so that nothing needs the rest of its source
        if len(held) == len(self.x):
            return replace(self, x=self.x[:], x_test=x_test)
        some = cast(np.ndarray, Rows(HeldRows(self.x, held, lambda: again().x)))
        return replace(self, x=some, x_test=x_test)

    def summary(self) -> dict[str, Any]:
        """The content of federation.json; its lists have at most the first 2,000 clients."""
        first = slice(0, SUMMARY_CLIENTS)
        unit, tests = "pixels" if self.masks else "samples", self.test_group_ids
        return {
            "name": self.name,
            "classes": list(self.groups),
            "clients": self.clients,
            "names": [self.name_of(k) for k in range(min(self.clients, SUMMARY_CLIENTS))],
            "sizes": {
                "train": self.sizes[first].tolist(),
                "val": self.val.sizes[first].tolist(),
                "test": self.test_sizes[first].tolist(),
            },
            "labels": self.label_counts[first].tolist(),
            "unit": "tokens" if self.tokens else unit,
            "test": self.common_test,
            "skew": self.skew,
            "shape": list(self.shape),
            **({"test_groups": len(np.unique(tests[self.test.rows]))} if tests is not None else {}),
            **({"layout": self.layout.as_json()} if self.layout else {}),
            **({"mean": list(self.applied[0]), "std": list(self.applied[1])} if self.applied else {}),
            **({"task": "multilabel"} if self.several else {}),
            **({"task": "regression", "target": asdict(self.target)} if self.target else {}),
            **({"understood": [list(note) for note in self.intake.notes]} if self.intake else {}),
        }


@dataclass(frozen=True, repr=False)
class RemoteFederation(Federation):
    """A federation without samples.

    counts: training samples of each client and class, int64 [K, C]; zeros for a client that does not report
    them.
    counted_by: the columns of counts, if they are no classes. scaled_apart: whether clients standardised
    their samples by private constants, which are unknown here. common: number of samples of a common test set
    on another machine.
    """

    counts: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    counted_by: tuple[str, ...] = ()
    scaled_apart: bool = False
    common: int = 0

    def __post_init__(self) -> None:
        if not self.clients or not self.sizes.any():
            raise DataError("E403", f"{self.name}: no client holds a training sample.")
        if self.target:
            check_targets(self.name, self.y, self.y_test, self.classes)
        else:
            check_labels(self.name, self.y, self.y_test, self.n_classes, self.shape, self.layout)

    @property
    def groups(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.counted_by or self.classes

    @property
    def common_test(self) -> int:  # type: ignore[override]
        return self.common or len(self.y_test)

    @property
    def label_counts(self) -> np.ndarray:  # type: ignore[override]
        """Training samples of each client and class, int64 [K, C]; zeros for a client that does not report
        them."""
        counts = np.zeros((self.clients, len(self.groups)), np.int64)
        if len(self.counts):
            counts[: len(self.counts)] = self.counts
        return counts

    @property
    def notes(self) -> tuple[Note, ...]:
        """The notes on how the samples were read."""
        return self.intake.notes if self.intake else ()

    def counted(self, k: int) -> bool:
        """Whether client k's samples of each class are known."""
        return k < len(self.counts) and bool(self.counts[k].any())

    @staticmethod
    def from_facts(inputs: Mapping[str, Any], summary: Mapping[str, Any]) -> RemoteFederation:
        """The federation that a record describes.

        inputs: the facts from `predictions.facts`. summary: the facts from `Federation.summary`.
        Raises KeyError, TypeError or ValueError for anything else.
        """
        shape, clients = tuple(map(int, inputs["shape"])), int(summary["clients"])
        sizes = np.zeros((2, clients), np.int64)
        for row, part in zip(sizes, ("train", "test")):
            row[: len(summary["sizes"][part])] = summary["sizes"][part]
        train, test = (Index(np.zeros(0, np.int64), np.concatenate([[0], np.cumsum(row)])) for row in sizes)
        mean, std = inputs["mean"], inputs["std"]
        names = tuple(map(str, summary["names"]))
        notes = tuple((topic, str(text)) for topic, text in summary.get("understood", ()))
        target = Target(**inputs["target"]) if "target" in inputs else None
        layout = Layout.from_json(inputs["layout"], *shape) if "layout" in inputs else None
        if mean or std:
            scaling.check((mean, std), shape, layout)
        pixels = {"pixels": shape[1:], "tokens": shape}.get(summary["unit"], ())
        if layout and summary["unit"] == "tokens":
            places = inputs.get("places")
            if type(places) is not int or places not in layout.lengths:
                raise ValueError("labels of as many places as no input has")
            pixels = (places,)
        nothing = np.zeros((0, *shape), np.float32)
        unlabelled = np.zeros((0, *pixels), np.int64)
        if target:
            unlabelled = np.zeros((0, *target_shape(inputs["classes"])))
        if summary.get("task") == "multilabel":
            unlabelled = np.zeros((0, len(inputs["classes"])), bool)
        groups = tuple(map(str, summary["classes"]))
        return RemoteFederation(
            str(summary["name"]),
            nothing,
            unlabelled,
            nothing,
            unlabelled,
            tuple(map(str, inputs["classes"])),
            train,
            test,
            str(summary["skew"]),
            names=names if len(names) == clients else None,
            intake=Intake(str(inputs["dtype"]), notes, form=dict(inputs.get("form", {}))),
            applied=(tuple(mean), tuple(std)) if mean else None,
            counts=np.array(summary["labels"], np.int64).reshape(-1, len(groups)),
            target=target,
            layout=layout,
            counted_by=groups if target else (),
            scaled_apart=inputs.get("scaled_apart", False) is True,
            common=int(summary.get("test", 0)),
        )
