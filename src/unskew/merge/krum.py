"""Multi-Krum (Blanchard et al., NeurIPS 2017): the clients whose weights lie closest to many others are averaged.

    score_k = sum of squared distances to the K - f - 2 nearest other clients;   the K - f lowest scores are kept
f: the clients that may send anything, floor(share K), and at most (K - 3) / 2, so that 2 f + 3 <= K.
Differs from the paper: it selects gradients, ours weights after local training, which are then averaged as the method
weighs clients. Statistics of batch normalisation count in no distance.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Lt

from unskew.core import Fed, Part, Tensor, Tree, Ups, Weights
from unskew.merge.mean import weighted_mean


@dataclass(frozen=True)
class MultiKrum(Part):
    """Averages the clients whose weights lie closest to many others."""

    share: Annotated[
        float, Ge(0), Lt(0.5), "share of the clients that may be arbitrary; they are left out of the mean"
    ] = 0.2
    name = "multi_krum"
    use_when = "A known share of the clients may send anything; the mean is taken over the clients that agree most."
    merges = True
    weights_read = "each"

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        bad = max(0, min(int(self.share * len(ups)), (len(ups) - 3) // 2))
        flat_KN = torch.stack([torch.cat([r.weights[n].flatten() for n in fed.shared]) for r in ups.replies])
        chosen = krum(flat_KN, bad)
        kept = replace(
            ups,
            clients=ups.clients[chosen],
            sizes=ups.sizes[chosen],
            replies=[ups.replies[k] for k in chosen.tolist()],
        )
        return weighted_mean(w, kept), s


def krum(flat_KN: Tensor, bad: int) -> Tensor:
    """Indices, ascending, of the K - bad rows [N] with the lowest scores."""
    K = len(flat_KN)
    distance_KK = torch.cdist(flat_KN.double(), flat_KN.double()).pow(2)
    near = max(1, K - bad - 2)
    scores = distance_KK.sort(1).values[:, 1 : near + 1].sum(1)
    return scores.argsort(stable=True)[: K - bad].sort().values.cpu()
