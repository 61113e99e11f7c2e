"""Distance correlation (Szekely, Rizzo and Bakirov, 2007) of inputs and features, as FLea measures its privacy.

Letters: B batch, D values of a sample.
E = Euclidean distances of all pairs of a batch;   A = C E_x C,  B = C E_f C,   C = I - J/n
R^2 = mean(A B) / sqrt(mean(A A) mean(B B))                          (FLea, Eq. 8; its code logs the root, R)
Few samples of many dimensions look dependent: for independent normal vectors of 50 dimensions R is 0.98 at n = 8, 0.93
at n = 32 and 0.66 at n = 256. Compare values of one batch size and one cut only.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def distance_correlation(x: Tensor, f: Tensor) -> tuple[float, float]:
    """(R, R^2) of a batch's inputs x [B, ...] and features f [B, ...]; NaN with fewer than three samples or where x or f
    does not vary.
    """
    if len(x) < 3:
        return math.nan, math.nan
    A, B = _centred(x), _centred(f)
    spread = float((A * A).mean() * (B * B).mean())
    if not spread > 0:
        return math.nan, math.nan
    squared = max(float((A * B).mean()) / math.sqrt(spread), 0.0)
    return math.sqrt(squared), squared


def _centred(x: Tensor) -> Tensor:
    """The distances of all pairs, with zero mean over every row and column."""
    x_BD = x.flatten(1).to(torch.float64)
    E_BB = torch.cdist(x_BD, x_BD, compute_mode="donot_use_mm_for_euclid_dist")
    return E_BB - E_BB.mean(0, keepdim=True) - E_BB.mean(1, keepdim=True) + E_BB.mean()
