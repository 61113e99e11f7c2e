"""Reliability of a model's confidences (Guo et al., ICML 2017).

Letters: N samples, C classes, B bins of confidence, evenly spaced in [0, 1].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BINS = 15
"""The number of bins in the paper."""


@dataclass(frozen=True)
class Reliability:
    """For each bin of confidence, [B]: the number of samples, the sum of their confidences, and the number of
    right predictions."""

    count: Tensor
    confidence: Tensor
    right: Tensor

    @property
    def ece(self) -> float:
        """Expected calibration error, sum_b n_b/N |accuracy_b - confidence_b|; NaN without samples."""
        return float((self.right - self.confidence).abs().sum() / self.count.sum())

    @property
    def overconfidence(self) -> float:
        """Mean confidence minus accuracy, in [-1, 1]; NaN without samples."""
        return float((self.confidence - self.right).sum() / self.count.sum())


def reliability(z_NC: Tensor, y_N: Tensor, bins: int = BINS) -> Reliability:
    """The bins of the predicted classes' probabilities. z_NC: logits. y_N: true classes. A bin (a, b]
    includes b."""
    p_N, guess_N = z_NC.double().softmax(1).max(1)
    return of_confidences(p_N, guess_N == y_N, bins)


def of_confidences(p_N: Tensor, right_N: Tensor, bins: int = BINS) -> Reliability:
    """The bins of confidences, float64 in [0, 1]. right_N: whether each prediction is right."""
    bin_N = (p_N * bins).ceil().long().clamp(1, bins) - 1
    empty = torch.zeros(bins, dtype=torch.float64, device=p_N.device)
    return Reliability(*(empty.index_add(0, bin_N, v) for v in (torch.ones_like(p_N), p_N, right_N.double())))
