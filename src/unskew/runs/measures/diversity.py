"""Weight diversity (ReBaFL, Xu et al., arXiv 2303.06314, Eq. 24): the spread of the clients' trained weights.

1/|S| sum_{k in S} || theta_k - mean_{j in S} theta_j ||^2        S: the clients of a round, weighted equally
Differs from the paper: nothing. theta are the trained weights that leave a client, not running statistics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from unskew.round.probes import Measurement, Probe, RoundEnd


def weight_diversity(models: Sequence[Mapping[str, Tensor]], names: Sequence[str]) -> float:
    """The diversity of the models' weights with these names; 0 for one model, NaN without models."""
    if not models:
        return float("nan")
    total = 0.0
    for name in names:
        w_KD = torch.stack([m[name].flatten() for m in models]).to(torch.float64)
        total += float((w_KD - w_KD.mean(0)).pow(2).sum())
    return total / len(models)


class Diversity(Probe):
    """One number per round: ReBaFL's Eq. 24 over the round's replies."""

    def refuse(self) -> str | None:
        return None if self.fed.shared else "its clients share no trained weight"

    def measure(self, end: RoundEnd) -> Measurement:
        return Measurement({"diversity": weight_diversity([r.weights for r in end.replies], self.fed.shared)})
