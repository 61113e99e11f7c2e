"""Class shares, and how far they are from the federation's own (FLea, Xia et al., KDD 2024, Fig. 7).

distance = 1/2 sum_c |p_c - q_c|        total variation: 0 for equal shares, 1 for no class in common
"""

from __future__ import annotations

import torch
from torch import Tensor


def class_shares(y: Tensor, classes: int) -> Tensor:
    """[C] from labels [N], from class distributions [N, C], or from counts [1, C]; zeros where there is nothing."""
    counts_C = torch.bincount(y, minlength=classes) if y.dim() == 1 else y.sum(0)
    counts_C = counts_C.to(torch.float64)
    return counts_C / counts_C.sum().clamp(min=1e-12)


def distance(p_C: Tensor, q_C: Tensor) -> float:
    """The total variation distance of two vectors of class shares, in [0, 1]."""
    return float((p_C - q_C).abs().sum() / 2)
