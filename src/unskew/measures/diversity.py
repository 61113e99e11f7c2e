"""Weight diversity (ReBaFL, Xu et al., arXiv 2303.06314, Eq. 24).

1/|S| sum_{k in S} || theta_k - mean_{j in S} theta_j ||^2        S: the clients of a round, weighted equally
Differs from the paper: nothing. theta are the trained weights that leave a client, not running statistics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def weight_diversity(models: Sequence[Mapping[str, Tensor]], names: Sequence[str]) -> float:
    """The diversity of the models' weights of these names; 0 for one model, NaN for none."""
    if not models:
        return float("nan")
    total = 0.0
    for name in names:
        w_KD = torch.stack([m[name].flatten() for m in models]).to(torch.float64)
        total += float((w_KD - w_KD.mean(0)).pow(2).sum())
    return total / len(models)
