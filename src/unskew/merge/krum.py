"""Multi-Krum (Blanchard et al., NeurIPS 2017): averages the clients that lie closest to many others.

    score_k = sum of squared distances to the K - f - 2 nearest other clients
    w <- mean of the K - f clients with the lowest scores
f is the number of clients that may send anything: share K rounded up, and at most (K - 3) / 2, so that
2 f + 3 <= K. With three or four replies one is left out without the proof; the run then prints a warning.
Statistics of batch normalisation enter no distance; their mean leaves out the f largest and the f smallest
values at each coordinate, with equal weights. Shares other than weights (prototypes, control variates) are
added up for all clients, including those left out.
Differs from the paper: the paper selects gradients; here weights after local training are selected, and then
averaged with the method's client weights.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Lt

from unskew.core import Fed, Part, Tensor, Tree, Ups, Weights
from unskew.merge.mean import weighted_mean
from unskew.merge.median import share_rounded_up, trimmed_mean


@dataclass(frozen=True)
class MultiKrum(Part):
    """Averages the clients with the weights that lie closest to many others."""

    share: Annotated[
        float, Ge(0), Lt(0.5), "share of the clients that may be arbitrary; they are left out of the mean"
    ] = 0.2
    name = "multi_krum"
    family = "robust"
    use_when = (
        "A known share of the clients may send anything; the mean is taken over the clients that agree most."
    )
    merges = True
    weights_read = "each"

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        bad = self.left_out(len(ups))
        flat_KN = torch.stack([torch.cat([r.weights[n].flatten() for n in fed.shared]) for r in ups.replies])
        chosen = krum(flat_KN, bad)
        kept = replace(
            ups,
            clients=ups.clients[chosen],
            sizes=ups.sizes[chosen],
            replies=[ups.replies[k] for k in chosen.tolist()],
        )
        statistics = [n for n in ups.replies[0].weights if n not in fed.shared] if bad else []
        return weighted_mean(w, kept) | {n: trimmed_mean(ups, n, bad) for n in statistics}, s

    def left_out(self, replies: int) -> int:
        """f for this number of replies: a minority of them, 0 below three."""
        return min(share_rounded_up(self.share, replies), max(1, (replies - 3) // 2), (replies - 1) // 2)

    def caution(self, replies: int) -> str | None:
        bad = self.left_out(replies)
        if not self.share or (bad and 2 * bad + 3 <= replies and bad >= int(self.share * replies)):
            return None
        if not bad:
            return f"with {replies} of the three replies it takes, it is the mean"
        return f"of {replies} replies {bad} is left out, and its proof holds for {max(0, (replies - 3) // 2)}"


def krum(flat_KN: Tensor, bad: int) -> Tensor:
    """Indices, ascending, of the K - bad rows [N] with the lowest scores."""
    K = len(flat_KN)
    distance_KK = torch.cdist(flat_KN.double(), flat_KN.double()).pow(2)
    near = max(1, K - bad - 2)
    scores = distance_KK.sort(1).values[:, 1 : near + 1].sum(1)
    return scores.argsort(stable=True)[: K - bad].sort().values.cpu()
