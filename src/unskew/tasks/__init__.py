"""What a model is trained for: a class for every sample, pixel or token, several labels, or a number. The labels decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

import numpy as np
from torch import Tensor

from unskew.errors import UsageError
from unskew.tasks.classification import Classification
from unskew.tasks.multilabel import MultiLabel
from unskew.tasks.regression import LOSSES, Regression
from unskew.tasks.segmentation import Segmentation
from unskew.tasks.tokens import TokenLabels

__all__ = ["Classification", "Learnt", "MultiLabel", "Regression", "Segmentation", "Task", "TokenLabels", "task_of"]


class Task(Protocol):
    """Targets, loss, predictions and scores of one kind of labels.

    Letters: N samples, B batch, C classes, or 1 for a number; `...` stands for the pixels of a mask, and for nothing else. Of
    labels at every token, [B, T], outputs are [B, T, C] and targets the labels themselves.
    """

    name: ClassVar[str]
    main_score: ClassVar[str]
    """The score by which methods are ranked; `unskew.scores` says which way is better."""
    bounds: ClassVar[tuple[float, float]]
    """Between which values a client's scores lie."""

    def pixels(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one sample's label: (), (height, width) or (tokens,), from the shape of the sample."""
        ...

    def targets(self, y: Tensor, classes: int, /) -> Tensor:
        """Class distributions, float32 [B, C, ...], from labels, int64 [B, ...]; or what other outputs are to be."""
        ...

    def loss(self, z: Tensor, y: Tensor, /) -> Tensor:
        """The loss of each sample, [B], from outputs and targets, both [B, C, ...]."""
        ...

    def predictions(self, z: Tensor, /) -> Tensor:
        """The most likely class, [B, ...], from logits [B, C, ...]; or the number, or each label's probability [B, L]."""
        ...

    def scores(self, guess: np.ndarray, true: np.ndarray, classes: int) -> dict[str, float]:
        """The scores of predicted and true labels, both [N, ...], the main one first; {} for no samples."""
        ...

    def client_scores(self, guess: np.ndarray, true: np.ndarray, classes: int) -> dict[str, float]:
        """Those of the scores that are recorded for each single client; arguments as in `scores`."""
        ...

    def pooled(self, shares: Sequence[float], scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """The scores on all clients' rows, from those of each client and the shares of its rows among all."""
        ...


class Learnt(Protocol):
    """What is learnt, as a target of numbers says: (y - center) / scale."""

    @property
    def center(self) -> float: ...
    @property
    def scale(self) -> float: ...


def task_of(y: np.ndarray, loss: str = "auto", target: Learnt | None = None, shape: tuple[int, ...] = ()) -> Task:
    """Classification for labels [N], segmentation for masks [N, height, width], regression for a target; multi-label for
    truth values [N, L]; a class for every token for labels [N, T] of samples [T], or of rows with several inputs.

    loss: the setting of that name. target: of data whose labels are numbers. shape: of one sample.
    Raises UsageError (E109) for a loss of another task.
    """
    if target is not None:
        if loss not in ("auto", *LOSSES):
            raise UsageError(
                "E109", f"loss={loss} compares classes, but these samples have a number each: use mse or mae."
            )
        return Regression(target.center, target.scale, "mse" if loss == "auto" else loss)
    if loss in LOSSES:
        raise UsageError("E109", f"loss={loss} compares numbers, but these samples have classes: leave loss=auto.")
    if y.dtype.kind == "b":
        if loss != "auto":
            raise UsageError("E109", f"loss={loss} is for one class a sample, and these have several: leave loss=auto.")
        return MultiLabel()
    if y.ndim == 2 and len(shape) == 1:
        if loss not in ("auto", "ce"):
            raise UsageError("E109", f"loss={loss} compares masks, but these samples are tokens: leave loss=auto.")
        return TokenLabels(y.shape[1])
    if y.ndim > 1:
        return Segmentation() if loss == "auto" else Segmentation(loss)
    if loss not in ("auto", "ce"):
        raise UsageError("E109", f"loss={loss} compares masks, but these samples have one label each: leave loss=auto.")
    return Classification()
