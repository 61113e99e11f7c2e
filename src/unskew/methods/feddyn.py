"""FedDyn (Acar et al., ICLR 2021, arXiv 2111.04263): dynamic regularisation aligns the clients' optima.

Client: loss - <g_k, w> + (alpha/2) ||w - w_t||^2;   then  g_k <- g_k - alpha (w_k - w_t)
Server: h <- h - alpha/K sum_k (w_k - w_t),   w_{t+1} = mean_k w_k - h / alpha
        K: all clients, including absent ones
Statistics of batch normalisation take the plain mean and enter neither g nor h.
Differs from the paper: the default alpha = 1e-4 is that of ReBaFL's comparison, the official example has
1e-2. The official code scales alpha by mean(n) / n_k, clips gradients (`clip_gradients(norm=10)`) and scores
three models (ours: w_{t+1}).
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le

from unskew.core import Batch, Client, Fed, Out, Part, Tensor, Tree, Ups, Weights
from unskew.merge.mean import weighted_mean


@dataclass(frozen=True)
class FedDyn(Part):
    """Regularises every client's loss towards the optimum of all clients."""

    alpha: Annotated[
        float,
        Ge(1e-12),
        Le(1_000_000),
        "strength of the regulariser; large values diverge with many local steps",
    ] = 0.0001
    name = "feddyn"
    family = "steps"
    against = ("labels",)
    use_when = "Clients drift over many local steps, and come back often enough for their state to be fresh."
    merges = True
    keeps_at_server = ("h",)
    weighting = "equal"

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        return {"h": {n: torch.zeros_like(w[n]) for n in fed.shared}}

    def client_init(self, w: Weights, fed: Fed) -> Tree:
        return {"g": {n: torch.zeros_like(w[n]) for n in fed.shared}}

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor | float:
        terms = [
            self.alpha / 2 * (w[n] - c.start[n].detach()).pow(2).sum() - (g.detach() * w[n]).sum()
            for n, g in c.mine["g"].items()
        ]
        return sum(terms[1:], terms[0])

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        return {}, {"g": {n: g - self.alpha * (w[n] - c.start[n]) for n, g in c.mine["g"].items()}}

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        mean = weighted_mean(w, ups)
        seen = self.alpha * len(ups) / fed.clients
        h = {n: h_n - seen * (mean[n] - w[n]) for n, h_n in s["h"].items()}
        return mean | {n: mean[n] - h_n / self.alpha for n, h_n in h.items()}, {"h": h}
