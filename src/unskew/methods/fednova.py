"""FedNova (Wang et al., NeurIPS 2020, arXiv 2007.07481): clients that take more steps do not pull harder.

Client: sends a_k, what its steps add up to:    a = S, the local steps, for plain SGD
        momentum rho:  a = (S - rho (1 - rho^S) / (1 - rho)) / (1 - rho)
        FedProx's mu:  a = (1 - (1 - lr mu)^S) / (lr mu)
Server: w_{t+1} = w_t - tau sum_k p_k (w_t - w_k) / a_k,   tau = sum_k p_k a_k (sum_k p_k S_k with mu)
Differs from the paper: with Adam, for which it has no closed form, a = S. Statistics of batch normalisation take the
plain mean.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge

from unskew.core import Client, Fed, Part, Share, Tensor, Tree, Ups, Weights
from unskew.merge.mean import weighted_mean


@dataclass(frozen=True)
class FedNova(Part):
    """Normalises every client's change by the number of its local steps."""

    mu: Annotated[
        float, Ge(0), "strength of a FedProx in the same method, whose pull shortens the steps; 0: there is none"
    ] = 0.0
    name = "fednova"
    use_when = "Clients differ much in size, and so in the number of local steps they take."
    merges = True

    def refuse(self, fed: Fed) -> str | None:
        if self.mu and fed.momentum:
            return "it has no closed form for FedProx with momentum; set momentum=0 or fednova.mu=0"
        return None

    def shares(self, fed: Fed) -> dict[str, Share]:
        return {"a": Share((), low=0, what="accumulated weight of the local steps"), "steps": Share((), low=0)}

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        return {"a": self.accumulated(c), "steps": c.steps}, {}

    def accumulated(self, c: Client) -> Tensor:
        """The L1 norm of the coefficients with which the local gradients enter w_t - w_k."""
        if not self.mu or c.fed.optimiser != "sgd":
            return c.pull
        shrink = c.lr * self.mu
        return (1 - (1 - shrink) ** c.steps) / shrink

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        p_K = torch.tensor(ups.shares_of_weight())
        a_K = ups["a"].cpu().to(p_K.dtype)
        tau = float(p_K @ (ups["steps"].cpu().to(p_K.dtype) if self.mu else a_K))
        merged = weighted_mean(w, ups)
        for n in fed.shared:
            scale = (tau * p_K / a_K).tolist()
            merged[n] = w[n] - sum(q * (w[n] - r.weights[n]) for q, r in zip(scale, ups.replies))
        return merged, s
