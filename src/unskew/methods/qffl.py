"""q-FFL (Li et al., ICLR 2020, arXiv 1905.10497, algorithm 2, q-FedAvg): a larger loss pulls harder.

Client: sends F_k, the mean loss of w_t over its training samples
Server: D_k = L F_k^q (w_t - w_k),   h_k = q L^2 F_k^(q-1) ||w_t - w_k||^2 + L F_k^q
        w_{t+1} = w_t - sum_k p_k D_k / sum_k p_k h_k
        L: a bound of the gradient's slope; unless set, 1 / (lr S) with lr of round 1 and S = sum_k p_k
        S_k, the mean number of a client's batches in a round
At q = 0 L cancels. Both sums are divided by L max_k F_k^q, so that no power overflows. Statistics of batch
normalisation take the plain mean.
Differs from the paper: it samples clients with probability p_k and then weighs them equally; ours are
selected as the availability setting says and weighted by p_k, their share of the samples. L = 1 / lr, in the
paper and its code, is meant for one step: w_t - w_k adds up S steps and enters h_k squared, so that a round's
step is shorter the more steps clients take; 1 / (lr S) counts them as one. The paper sets q by data set, from
0.001 to 5; q = 0.1 is the default of PropFair's code, which compares both. As in the official code, 1e-10 is
added to F_k.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le

from unskew.core import Batch, Client, Fed, Part, Share, Tensor, Tree, Ups, Weights
from unskew.formats.setting_ranges import NonNegative
from unskew.merge.mean import weighted_mean


@dataclass(frozen=True)
class QFFL(Part):
    """Weighs clients by a power of their loss, for scores that differ less between clients."""

    q: Annotated[float, Ge(0), Le(1000), "how much clients with a large loss count for; 0 is FedAvg"] = 0.1
    L: Annotated[NonNegative, "bound of the gradient's slope; less gives longer steps; 0: 1 / (lr S)"] = 0.0
    name = "qffl"
    family = "fairness"
    equal_samples = True
    use_when = "The clients with the worst scores matter: scores are to differ less, and their mean may fall."
    neutral = {"q": 0.0}
    merges = True
    weights_read = "each"

    def shares(self, fed: Fed) -> dict[str, Share]:
        return loss_share()

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        return {"loss": mean_loss(c.start, c)}, {}

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        p_K, F_K = torch.tensor(ups.shares_of_weight()), ups["loss"].double().cpu() + 1e-10
        moved_K = torch.tensor(
            [
                sum(float((w[n] - r.weights[n]).double().square().sum()) for n in fed.shared)
                for r in ups.replies
            ]
        )
        steps_K = fed.epochs * (ups.sizes.cpu() / fed.batch).ceil()
        L = self.L or 1 / (fed.lr * float((p_K * steps_K).sum()))
        weight_K = p_K * (F_K / F_K.max()).pow(self.q)
        h = (weight_K * (1 + self.q * L * moved_K / F_K)).sum()
        scale_K = (weight_K / h).tolist()
        stepped = {
            n: w[n] - sum(a * (w[n] - r.weights[n]) for a, r in zip(scale_K, ups.replies)) for n in fed.shared
        }
        return weighted_mean(w, ups) | stepped, s


def mean_loss(w: Weights, c: Client) -> Tensor:
    """The mean loss of these weights over all the client's training samples, in evaluation mode."""

    def sums(b: Batch) -> dict[str, Tensor]:
        return {"loss": (c.fed.task.loss(c.run(w, b.x), b.y) * b.weight).sum(), "n": b.weight.sum()}

    total = c.total(sums)
    return total["loss"] / total["n"]


def loss_share() -> dict[str, Share]:
    """The Share of `mean_loss`, which the server reads of every client."""
    what = "mean loss of the received model"
    return {"loss": Share((), low=0, reads="each", what=what, kind="statistics", samples="client")}
