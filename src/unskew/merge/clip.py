"""Clipping to the median norm: no client moves the model further than the typical one.

    w <- w + sum_k p_k (w_k - w) min(1, c m / |w_k - w|),    m: the median of the clients' norms
The rule is applied to all trained weights together, and separately to all statistics of batch normalisation
together. With fewer than three replies the median may be the norm of the outlier itself; the run then prints
a warning. Shares other than weights (prototypes, control variates) are not clipped.
Differs from the paper: there is none; this is adaptive clipping without noise (cf. Andrew et al., NeurIPS
2021, arXiv 1905.03871).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from unskew.core import Fed, Part, Tree, Ups, Weights
from unskew.merge.mean import weighted_mean


@dataclass(frozen=True)
class ClipMedian(Part):
    """Clips every client's change to a multiple of the median norm."""

    factor: Annotated[
        float, Ge(1e-6), Le(1_000_000), "c, how many times the median norm a client may change the model by"
    ] = 1.0
    name = "clip_median"
    family = "robust"
    use_when = "One of the sites may send something far too large: its change is cut down to a typical one."
    merges = True
    weights_read = "each"

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        merged, statistics = weighted_mean(w, ups), [n for n in ups.replies[0].weights if n not in fed.shared]
        for names in (fed.shared, statistics):
            merged |= self._clipped(w, ups, names)  # one after the other, as the model may be large
        return merged, s

    def _clipped(self, w: Weights, ups: Ups, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """The merged values of these weights, clipped together; nothing if no client's change is clipped."""
        moved_K = [
            sum(float((r.weights[n] - w[n]).double().pow_(2).sum()) for n in names) ** 0.5
            for r in ups.replies
        ]
        most = self.factor * float(torch.tensor(moved_K).quantile(0.5))
        keep_K = [min(1.0, most / moved) if moved else 1.0 for moved in moved_K]
        if min(keep_K) == 1:
            return
        share_K = [p * keep for p, keep in zip(ups.shares_of_weight(), keep_K)]
        for n in names:
            yield n, w[n] + sum(q * (r.weights[n] - w[n]) for q, r in zip(share_K, ups.replies))

    def caution(self, replies: int) -> str | None:
        return (
            None
            if replies > 2
            else f"with {replies} of the three replies it takes, nobody's change is bounded"
        )
