"""Classification: cross-entropy against class distributions, and scores from a confusion matrix.

Letters: B batch, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Classification:
    """The task of telling C classes apart."""

    name: ClassVar[str] = "classification"
    main: ClassVar[str] = "accuracy"

    def pixels(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """What follows the classes in the model's answer to a sample: nothing."""
        return ()

    def loss(self, z_BC: Tensor, y_BC: Tensor) -> Tensor:
        """-sum_c y_c log softmax(z)_c per sample, in nats; a class of no mass counts nothing, even if masked out."""
        log_p = z_BC.log_softmax(-1)
        return -(y_BC * log_p.masked_fill(y_BC == 0, 0.0)).sum(-1)

    def targets(self, y_B: Tensor, classes: int) -> Tensor:
        """Whole numbers as rows of 0 and 1, which may then be mixed or smoothed."""
        return F.one_hot(y_B, classes).float()

    def predictions(self, z_BC: Tensor) -> Tensor:
        return z_BC.argmax(-1)

    def metrics(self, confusion_CC: np.ndarray, loss_sum: float | None = None) -> dict[str, float]:
        """From counts [true, predicted], which add up over pieces of a test set; {} where nothing was counted.

        Classes without a sample count nowhere. loss_sum, over the same samples, adds their mean loss in nats.
        """
        if not confusion_CC.sum():
            return {}
        right, true, guessed = np.diag(confusion_CC), confusion_CC.sum(1), confusion_CC.sum(0)
        present = true > 0
        f1 = 2 * right / np.maximum(true + guessed, 1)
        loss = {} if loss_sum is None else {"loss": float(loss_sum / confusion_CC.sum())}
        return {
            "accuracy": float(right.sum() / confusion_CC.sum()),
            "macro_f1": float(f1[present].mean()),
            "worst_class": float((right[present] / true[present]).min()),
            **loss,
        }

    def scores(self, guess: np.ndarray, true: np.ndarray, classes: int) -> dict[str, float]:
        """`metrics` of predicted and true classes, both [N]."""
        return self.metrics(np.bincount(true * classes + guess, minlength=classes**2).reshape(classes, classes))

    def brief(self, guess: np.ndarray, true: np.ndarray, classes: int) -> dict[str, float]:
        """What is told of a single client."""
        return {"accuracy": float((guess == true).mean())} if len(true) else {}
