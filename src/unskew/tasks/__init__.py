"""What a model is trained for: a class for every sample, or a class for every pixel. The labels decide which."""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np
from torch import Tensor

from unskew.errors import UsageError
from unskew.tasks.classification import Classification
from unskew.tasks.segmentation import Segmentation

__all__ = ["Classification", "Segmentation", "Task", "task_of"]


class Task(Protocol):
    """Targets, loss, predictions and scores of one kind of labels.

    Letters: N samples, B batch, C classes; `...` stands for the pixels of a mask, and for nothing in classification.
    """

    name: ClassVar[str]
    main_score: ClassVar[str]
    """The score by which methods are ranked."""

    def pixels(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one sample's label: () or (height, width), from the shape of the sample."""
        ...

    def targets(self, y: Tensor, classes: int, /) -> Tensor:
        """Class distributions, float32 [B, C, ...], from labels, int64 [B, ...]."""
        ...

    def loss(self, z: Tensor, y: Tensor, /) -> Tensor:
        """The loss of each sample, [B], from logits and class distributions, both [B, C, ...]."""
        ...

    def predictions(self, z: Tensor, /) -> Tensor:
        """The most likely class, [B, ...], from logits [B, C, ...]."""
        ...

    def scores(self, guess: np.ndarray, true: np.ndarray, classes: int) -> dict[str, float]:
        """The scores, in [0, 1], of predicted and true classes, both [N, ...]; {} for no samples."""
        ...

    def client_scores(self, guess: np.ndarray, true: np.ndarray, classes: int) -> dict[str, float]:
        """Those of the scores that are recorded for each single client; arguments as in `scores`."""
        ...


def task_of(y: np.ndarray, loss: str = "auto") -> Task:
    """Classification for labels [N], segmentation for masks [N, height, width].

    loss: the setting of that name. Raises UsageError (E109) if it is a loss for masks and the samples have none.
    """
    if y.ndim > 1:
        return Segmentation() if loss == "auto" else Segmentation(loss)
    if loss not in ("auto", "ce"):
        raise UsageError("E109", f"loss={loss} compares masks, but these samples have one label each: leave loss=auto.")
    return Classification()
