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


def distance_correlation(x: Tensor, f: Tensor, kinds: bool = False) -> tuple[float, float]:
    """(R, R^2) of a batch's inputs x [B, ...] and features f [B, ...]; NaN with fewer than three samples or where x or f
    does not vary. kinds: x holds whole numbers that stand for kinds, of which two are as far apart as any two others.
    """
    if len(x) < 3:
        return math.nan, math.nan
    x_BD = x.flatten(1)
    A, B = _centred(_differences(x_BD) if kinds else _distances(x_BD)), _centred(_distances(f.flatten(1)))
    spread = float((A * A).mean() * (B * B).mean())
    if not spread > 0:
        return math.nan, math.nan
    squared = max(float((A * B).mean()) / math.sqrt(spread), 0.0)
    return math.sqrt(squared), squared


def _distances(x_BD: Tensor) -> Tensor:
    x = x_BD.to(torch.float64)
    return torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")


def _differences(x_BD: Tensor) -> Tensor:
    """The distances of rows whose numbers are written as indicators, up to a factor."""
    return (x_BD[:, None] != x_BD[None]).sum(-1).to(torch.float64).sqrt()


def _centred(E_BB: Tensor) -> Tensor:
    """Distances of all pairs, with zero mean over every row and column."""
    return E_BB - E_BB.mean(0, keepdim=True) - E_BB.mean(1, keepdim=True) + E_BB.mean()
