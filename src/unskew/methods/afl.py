"""AFL (Mohri, Sivek & Suresh, ICML 2019, arXiv 1902.00146): the best model for the worst mixture of clients.

Client: sends F_k, the mean loss of w_t over its training samples
Server: w_{t+1} = sum_k l_k w_k / sum_k l_k
        over the clients that replied; w_t if all their l_k are 0
        l_k <- l_k + step F_k / K,   then l <- the nearest point of the simplex
        l begins at n_k / n over all K clients
Differs from the paper: the model takes a client's whole local training as its gradient, as federated
comparisons do, and the last model counts instead of the average over all rounds. The paper draws clients at
random by l; ours reply as the availability setting says, and l_k moves when client k replies. `step` is in
units of 1 / K, an equal share, because a step of one size for any number of clients gives few of many all the
weight: 0.2 is 0.1 for two clients and about 0.01 for 23, as in the public code of q-FFL; that of PropFair has
1, as 0.1 for ten. The former begins with equal l, the latter moves l before the merge of the same round.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Le

from unskew.core import Client, Fed, Part, Share, Tensor, Tree, Ups, Weights
from unskew.merge.mean import weighted_mean
from unskew.methods.qffl import loss_share, mean_loss


@dataclass(frozen=True)
class AFL(Part):
    """Weighs clients by a mixture that the server moves towards the clients with the largest loss."""

    step: Annotated[
        float,
        Ge(0),
        Le(1000),
        "how far a loss of 1 moves its client's weight, in units of an equal share 1 / K; 0 is FedAvg",
    ] = 0.2
    name = "afl"
    equal_samples = True
    family = "fairness"
    use_when = "The worst client's score counts, and clients are few: silos that all answer."
    neutral = {"step": 0.0}
    merges = True
    weights_read = "each"
    keeps_at_server = ("mixture",)

    def shares(self, fed: Fed) -> dict[str, Share]:
        return loss_share()

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        return {"loss": mean_loss(c.start, c)}, {}

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        sizes_K = torch.as_tensor(fed.sizes, dtype=torch.float32)
        return {"mixture": sizes_K / sizes_K.sum()}

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        mixture, replied = s["mixture"].clone(), ups.clients.to(s["mixture"].device)
        weight_K = mixture[replied].double().cpu()
        merged = weighted_mean(w, replace(ups, sizes=weight_K), "size") if weight_K.sum() else dict(w)
        mixture[replied] += self.step / fed.clients * ups["loss"].to(mixture)
        return merged, {"mixture": on_simplex(mixture) if self.step else mixture}


def on_simplex(l_K: Tensor) -> Tensor:
    """Euclidean projection onto the simplex: the nearest point with no negative number and the sum 1."""
    sorted_K = l_K.sort(descending=True).values
    excess_K = (sorted_K.cumsum(0) - 1) / torch.arange(1, len(l_K) + 1, device=l_K.device)
    last = int((sorted_K > excess_K).sum()) - 1
    return (l_K - excess_K[last]).clamp(min=0)
