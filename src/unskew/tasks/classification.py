"""Classification: cross-entropy against class distributions, and scores from a confusion matrix.

Letters: B batch, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class Classification:
    """The task of telling C classes apart."""

    def loss(self, z_BC: Tensor, y_BC: Tensor) -> Tensor:
        """-sum_c y_c log softmax(z)_c per sample, in nats; a class of no mass counts nothing, even if masked out."""
        log_p = z_BC.log_softmax(-1)
        return -(y_BC * log_p.masked_fill(y_BC == 0, 0.0)).sum(-1)

    def metrics(self, confusion_CC: np.ndarray) -> dict[str, float]:
        """From counts [true, predicted]; classes without a sample count nowhere."""
        right, true, guessed = np.diag(confusion_CC), confusion_CC.sum(1), confusion_CC.sum(0)
        present = true > 0
        f1 = 2 * right / np.maximum(true + guessed, 1)
        return {
            "accuracy": float(right.sum() / max(1, confusion_CC.sum())),
            "macro_f1": float(f1[present].mean()),
            "worst_class": float((right[present] / true[present]).min()),
        }
