"""Classification: cross-entropy against class distributions, and scores from a confusion matrix.

Letters: B batch, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from unskew.tasks.means import mean


@dataclass(frozen=True)
class Classification:
    """One class for every sample."""

    name: ClassVar[str] = "classification"
    main_score: ClassVar[str] = "accuracy"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def pixels(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """(): a sample has one label."""
        return ()

    def loss(self, z_BC: Tensor, y_BC: Tensor) -> Tensor:
        """-sum_c y_c log softmax(z)_c of each sample, in nats, [B].

        A class with y_c = 0 adds nothing, even where its logit is -inf.
        """
        log_p = z_BC.log_softmax(-1)
        return -(y_BC * log_p.masked_fill(y_BC == 0, 0.0)).sum(-1)

    def targets(self, y_B: Tensor, classes: int) -> Tensor:
        """One-hot rows, float32 [B, C], which a Part may then mix or smooth."""
        return F.one_hot(y_B, classes).float()

    def predictions(self, z_BC: Tensor) -> Tensor:
        """The most likely class of each sample, int64 [B]."""
        return z_BC.argmax(-1)

    def metrics(self, confusion_CC: np.ndarray, loss_sum: float | None = None) -> dict[str, float]:
        """accuracy, macro_f1 and worst_class from a confusion matrix [true, predicted]; {} if it is empty.

        Confusion matrices of parts of a test set can be added up first. Classes without a sample are left out of the
        means. loss_sum: the summed loss of the same samples; adds `loss`, their mean in nats.
        """
        counted = _metrics(np.diag(confusion_CC), confusion_CC.sum(1), confusion_CC.sum(0))
        loss = {"loss": float(loss_sum / confusion_CC.sum())} if counted and loss_sum is not None else {}
        return counted | loss

    def scores(self, guess: np.ndarray, true: np.ndarray, classes: int) -> dict[str, float]:
        """`metrics` from predicted and true classes, both [N]."""
        right, *both = (np.bincount(labels, minlength=classes) for labels in (true[true == guess], true, guess))
        return _metrics(right, *both)

    def client_scores(self, guess: np.ndarray, true: np.ndarray, classes: int) -> dict[str, float]:
        """The accuracy on one client's test samples; {} if it has none."""
        return {"accuracy": float((guess == true).mean())} if len(true) else {}

    def pooled(self, shares: Sequence[float], scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """The scores on all clients' rows from those of each client."""
        return mean(shares, scores)


def _metrics(right_C: np.ndarray, true_C: np.ndarray, guessed_C: np.ndarray) -> dict[str, float]:
    """accuracy, macro_f1 and worst_class from how many samples of each class are guessed right, are there, and are guessed; {}
    without samples. No matrix [C, C] is needed, which many classes would fill the memory with."""
    if not true_C.sum():
        return {}
    present = true_C > 0
    f1 = 2 * right_C / np.maximum(true_C + guessed_C, 1)
    return {
        "accuracy": float(right_C.sum() / true_C.sum()),
        "macro_f1": float(f1[present].mean()),
        "worst_class": float((right_C[present] / true_C[present]).min()),
    }
