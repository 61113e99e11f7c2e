"""What a model is asked: classes of samples, or of every pixel. The labels say which."""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np
from torch import Tensor

from unskew.errors import UsageError
from unskew.tasks.classification import Classification
from unskew.tasks.segmentation import Segmentation

__all__ = ["Classification", "Segmentation", "Task", "task_of"]


class Task(Protocol):
    """What a task owns: targets, loss, predictions, scores. `main` names the score that ranks methods."""

    name: ClassVar[str]
    main: ClassVar[str]

    def pixels(self, shape: tuple[int, ...]) -> tuple[int, ...]: ...

    def targets(self, y: Tensor, classes: int) -> Tensor: ...

    def loss(self, z: Tensor, y: Tensor) -> Tensor: ...

    def predictions(self, z: Tensor) -> Tensor: ...

    def scores(self, guess: np.ndarray, true: np.ndarray, classes: int) -> dict[str, float]: ...

    def brief(self, guess: np.ndarray, true: np.ndarray, classes: int) -> dict[str, float]: ...


def task_of(y: np.ndarray, loss: str = "auto") -> Task:
    """Classification for labels [N], segmentation for masks [N, ...]. Raises UsageError (E109) for another's loss."""
    if y.ndim > 1:
        return Segmentation() if loss == "auto" else Segmentation(loss)
    if loss not in ("auto", "ce"):
        raise UsageError("E109", f"loss={loss} compares masks; these data have one label a sample: leave loss=auto.")
    return Classification()
