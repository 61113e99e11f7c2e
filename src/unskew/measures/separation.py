"""The Davies-Bouldin index (Davies and Bouldin, 1979): how well groups of points are told apart; 0 is best.

s_i = mean over group i of |x - m_i|,   m_i its mean,   d_ij = |m_i - m_j|
DB  = mean_i max_{j != i} (s_i + s_j) / d_ij
Letters: N points, C groups, D features.
Differs from scikit-learn: NaN for points that do not vary, where it answers 0.
"""

from __future__ import annotations

import torch
from torch import Tensor


def davies_bouldin(x_ND: Tensor, group_N: Tensor) -> float:
    """Davies-Bouldin index of the points x_ND grouped by group_N.

    NaN with fewer than two groups, where two groups have the same mean, and where a value is not finite.
    """
    groups, index_N = group_N.unique(return_inverse=True)
    C = len(groups)
    if C < 2 or not bool(torch.isfinite(x_ND).all()):
        return float("nan")
    x_ND = x_ND.to(torch.float64)
    one_NC = torch.nn.functional.one_hot(index_N, C).to(x_ND.dtype)
    n_C = one_NC.sum(0)
    mean_CD = one_NC.T @ x_ND / n_C[:, None]
    spread_C = one_NC.T @ (x_ND - mean_CD[index_N]).norm(dim=1) / n_C
    apart_CC = (mean_CD[:, None] - mean_CD[None, :]).norm(dim=2)
    other_CC = ~torch.eye(C, dtype=torch.bool, device=x_ND.device)
    if bool((apart_CC[other_CC] == 0).any()):
        return float("nan")
    ratio_CC = (spread_C[:, None] + spread_C[None, :]) / torch.where(other_CC, apart_CC, 1.0)
    return float(torch.where(other_CC, ratio_CC, 0.0).max(1).values.mean())
