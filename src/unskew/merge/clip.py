"""Clipping to the median norm: no client moves the model further than the typical one.

    w <- w + sum_k p_k (w_k - w) min(1, c m / |w_k - w|),    m: the median of the clients' norms
Norms are over all trained weights together; statistics of batch normalisation take the plain mean.
Differs from the paper: none; adaptive clipping without noise (cf. Andrew et al., NeurIPS 2021, arXiv 1905.03871).
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt

from unskew.core import Fed, Part, Tree, Ups, Weights
from unskew.merge.mean import weighted_mean


@dataclass(frozen=True)
class ClipMedian(Part):
    """Clips every client's change to a multiple of the median norm."""

    factor: Annotated[float, Gt(0), "c, how many times the median norm a client may change the model by"] = 1.0
    name = "clip_median"
    use_when = "One of the sites may send something far too large: its change is cut down to a typical one."
    merges = True
    weights_read = "each"

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        merged = weighted_mean(w, ups)
        moved_K = [
            sum(float((r.weights[n] - w[n]).double().pow(2).sum()) for n in fed.shared) ** 0.5 for r in ups.replies
        ]
        most = self.factor * float(torch.tensor(moved_K).quantile(0.5))
        keep_K = [min(1.0, most / moved) if moved else 1.0 for moved in moved_K]
        for n in fed.shared if min(keep_K) < 1 else ():
            steps = (
                p * keep * (r.weights[n] - w[n]) for p, keep, r in zip(ups.shares_of_weight(), keep_K, ups.replies)
            )
            merged[n] = w[n] + sum(steps)
        return merged, s
