"""Clients that are known by what was counted of them, and none of whose samples are here.

Letters: K clients, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unskew.data import scaling
from unskew.data.checks import check_labels
from unskew.data.federation import Federation
from unskew.data.index import Index
from unskew.data.intake.notes import Intake, Note
from unskew.data.layout import Layout
from unskew.data.target import Target, check_targets
from unskew.errors import DataError


@dataclass(frozen=True)
class Unseen(Federation):
    """A federation without samples.

    counts: training samples of each client and class, int64 [K, C]; all zero where clients do not say. counted_by: what the
    columns of counts are, where they are no classes. scaled_apart: whether clients standardised their samples by constants of
    their own, which are not known here. common: samples of a common test set that is elsewhere.
    """

    counts: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    counted_by: tuple[str, ...] = ()
    scaled_apart: bool = False
    common: int = 0

    def __post_init__(self) -> None:
        if not self.clients or not self.sizes.any():
            raise DataError("E403", f"{self.name}: no client holds a training sample.")
        if self.target:
            check_targets(self.name, self.y, self.y_test)
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
        """int64 [K, C]; a client of whom nothing is known has zeros."""
        counts = np.zeros((self.clients, len(self.groups)), np.int64)
        if len(self.counts):
            counts[: len(self.counts)] = self.counts
        return counts

    @property
    def notes(self) -> tuple[Note, ...]:
        """What was remarked on the samples when they were read."""
        return self.intake.notes if self.intake else ()

    def counted(self, k: int) -> bool:
        """Whether client k's samples of each class are known."""
        return k < len(self.counts) and bool(self.counts[k].any())

    @staticmethod
    def from_facts(inputs: Mapping[str, Any], summary: Mapping[str, Any]) -> Unseen:
        """inputs: as `predictions.facts` gives them. summary: as `Federation.summary` gives it.

        Raises KeyError, TypeError or ValueError where they hold something else.
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
        pixels = {"pixels": shape[1:], "tokens": _tokens(inputs, layout) if layout else shape}.get(summary["unit"], ())
        nothing = np.zeros((0, *shape), np.float32)
        unlabelled = np.zeros((0, *pixels), np.float64 if target else np.int64)
        if summary.get("task") == "multilabel":
            unlabelled = np.zeros((0, len(inputs["classes"])), bool)
        groups = tuple(map(str, summary["classes"]))
        return Unseen(
            str(summary["name"]), nothing, unlabelled, nothing, unlabelled, tuple(map(str, inputs["classes"])),
            train, test, str(summary["skew"]), names=names if len(names) == clients else None,
            intake=Intake(str(inputs["dtype"]), notes, form=dict(inputs.get("form", {}))),
            applied=(tuple(mean), tuple(std)) if mean else None,
            counts=np.array(summary["labels"], np.int64).reshape(-1, len(groups)),
            target=target, layout=layout, counted_by=groups if target else (),
            scaled_apart=inputs.get("scaled_apart", False) is True, common=int(summary.get("test", 0)),
        )  # fmt: skip


def _tokens(inputs: Mapping[str, Any], layout: Layout) -> tuple[int, ...]:
    """The shape of a sample's labels, () where it has one; of several inputs, one of which has as many places.

    Raises ValueError for another number of places.
    """
    places = inputs.get("places")
    if places is None:
        return ()
    if type(places) is not int or places not in layout.lengths:
        raise ValueError("labels of as many places as no input has")
    return (places,)
