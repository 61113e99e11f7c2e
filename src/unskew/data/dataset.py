"""A set of samples before it is dealt out to clients, checked once.

Letters: N samples, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from unskew.data import scaling
from unskew.data.checks import check_finite, check_labels, check_lengths, check_rows
from unskew.data.intake.notes import Intake, Note
from unskew.data.layout import Layout
from unskew.data.rows import changed
from unskew.data.target import Target, check_targets, edges, tenths
from unskew.errors import DataError


@dataclass(frozen=True)
class Dataset:
    """Training and test samples with their labels.

    x: [N, ...] float32, channels first, in natural units (images: [0, 1]); or what stands in for samples that are read when
    they are wanted (unskew.data.rows).
    y: int64 [N], 0 to C-1; or masks, whole numbers [N, H, W] for x [N, channels, H, W], a class for every pixel; or int64
    [N, T] for tokens x [N, T], -1 where one does not count; or, with a target, numbers, float64 [N]; or which of C labels each sample has, bool [N, C].
    classes: their names; with a target, its name alone.
    columns: further facts per training sample, such as subject or domain, [N] each, by which clients can be formed.
    test_columns: the same per test sample. labels: names of a column's values.
    mean, std: one number per channel (`scaling.py`), by which `standardised` scales the samples; None if there are none.
    applied: the mean and std by which the samples have been scaled already.
    intake: what was understood of data that a user brought; None for a named set. target: of labels that are numbers.
    layout: of samples with several inputs, each of which is then a row of x, [N, D]. held_out: whether the test samples were taken
    out of the training samples, because none were given.

    A target without constants of its own gets those of the training samples.
    Raises DataError: E403 for lengths and shapes, E404 for labels, E405 for NaN and infinity.
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
    applied: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    intake: Intake | None = None
    target: Target | None = None
    layout: Layout | None = None
    held_out: bool = False

    def __post_init__(self) -> None:
        check_lengths(self.name, "training", self.x, self.y, self.columns)
        check_lengths(self.name, "test", self.x_test, self.y_test, self.test_columns)
        if not len(self.y):
            raise DataError("E403", f"{self.name} has no training samples.")
        shape, test_shape = list(self.x.shape[1:]), list(self.x_test.shape[1:])
        if len(self.y_test) and shape != test_shape:
            raise DataError(
                "E403",
                f"{self.name}: training samples are {shape}, test samples {test_shape}; they must have one shape.",
            )
        check_rows(self.name, self.layout, self.shape, self.y.shape[1:] if self.masks else ())
        if self.target:
            check_targets(self.name, self.y, self.y_test)
            object.__setattr__(self, "target", self.target.fitted(self.y, self.name))
        else:
            check_labels(self.name, self.y, self.y_test, len(self.classes), self.shape, self.layout)
        check_finite(self.name, "training", self.x)
        check_finite(self.name, "test", self.x_test)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])

    @property
    def several(self) -> bool:
        """Whether a sample has any number of labels, instead of one class."""
        return self.y.dtype.kind == "b"

    @property
    def masks(self) -> bool:
        """Whether every pixel or token has a label, instead of every sample."""
        return self.y.ndim > 1 and not self.several

    @property
    def tokens(self) -> bool:
        """Whether every token has a label, or -1: a case of masks."""
        return self.masks and self.y.ndim == 2 and len(self.shape) == 1

    def with_constants(self, inputs: Sequence[str] | None = None) -> Dataset:
        """The set with the mean and standard deviation of every channel of its training samples as `mean` and `std`.

        inputs: the names of those of several inputs that they scale, default all of floats.
        """
        mean, std = scaling.found(self.x, self.layout, inputs)
        return replace(self, mean=mean, std=std)

    def noted(self, *notes: Note) -> Dataset:
        """The set with further remarks on what was understood."""
        return replace(self, intake=(self.intake or Intake(str(self.x.dtype))).noted(*notes))

    def standardised(self) -> Dataset:
        """The set with samples (x - mean) / std, channel by channel; unchanged if it has no such constants."""
        if self.mean is None or self.std is None:
            return self
        constants = (self.mean, self.std)
        scale = partial(scaling.applied, constants=constants, layout=self.layout)
        x, x_test = (changed(part, scale) for part in (self.x, self.x_test))
        return replace(self, x=x, x_test=x_test, mean=None, std=None, applied=constants)

    def to_natural(self, x: np.ndarray) -> np.ndarray:
        """Samples [N, ...] of this set in natural units."""
        return x if self.applied is None else scaling.undone(x, self.applied, self.layout)

    def from_natural(self, x: np.ndarray) -> np.ndarray:
        """Samples [N, ...] in natural units, scaled as this set's are."""
        return x if self.applied is None else scaling.applied(x, self.applied, self.layout)


def strata(y: np.ndarray, among: np.ndarray | None = None) -> np.ndarray:
    """The groups from which samples are drawn in proportion, int64 [N]: their classes; with masks, one group for all.

    Of targets that are numbers, the tenths; of several labels a sample, its rarest one, and C where it has none.
    among: the targets whose tenths, or labels whose frequencies, count; default: these.
    """
    if y.dtype.kind == "b":
        return rarest(y, y if among is None else among)
    if y.dtype.kind == "f":
        return tenths(y, edges(y if among is None else among))
    return y if y.ndim == 1 else np.zeros(len(y), dtype=np.int64)


def rarest(y_NC: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Of each sample's labels the one that the fewest of `among` have, the first of equally rare ones; C without any."""
    count, C = among.sum(0), y_NC.shape[1]
    order = np.argsort(count, kind="stable")
    return np.where(y_NC.any(1), order[y_NC[:, order].argmax(1)], C).astype(np.int64)
