"""FedNova (Wang et al., NeurIPS 2020, arXiv 2007.07481): normalises changes by the number of local steps.

Client: sends a_k, the effective number of its steps:    a = S, the local steps, for plain SGD
        momentum rho:  a = (S - rho (1 - rho^S) / (1 - rho)) / (1 - rho)
        with FedProx:  a = (1 - (1 - m)^S) / m    m = lr mu, of the FedProx in the method; 2 - m
        instead of m above 1
Server: w_{t+1} = w_t - tau sum_k p_k (w_t - w_k) / a_k,   tau = sum_k p_k a_k
        with FedProx  tau = sum_k p_k S_k
Differs from the paper: with Adam, for which it has no closed form, a = S. FedProx has none either with
momentum or with a learning rate that changes within a round, and is refused. Weight decay counts as part of
the gradient. Statistics of batch normalisation take the plain mean.
"""

from dataclasses import dataclass, replace

import torch

from unskew.core import Client, Fed, Part, Share, Tensor, Tree, Ups, Weights
from unskew.merge.mean import weighted_mean
from unskew.methods.shared.weights import HEAD_FIRST_PARTS


@dataclass(frozen=True)
class FedNova(Part):
    """Normalises every client's change by the number of its local steps."""

    name = "fednova"
    family = "merge"
    use_when = "Clients differ much in size, and so in their number of local steps."
    merges = True
    by_steps = "server"
    clashes = dict.fromkeys(
        HEAD_FIRST_PARTS, "it divides a change by all local steps, and with the other the body rests in some"
    )

    def refuse(self, fed: Fed) -> str | None:
        if fed.proximal and fed.momentum and fed.optimiser == "sgd":
            return "it has no closed form for FedProx with momentum; set momentum=0, or leave FedProx out"
        return None

    def shares(self, fed: Fed) -> dict[str, Share]:
        each = Share((), low=0, reads="each", kind="statistics", samples="client")
        return {
            "a": replace(each, what="accumulated weight of the local steps"),
            "steps": replace(each, what="number of local steps"),
        }

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        return {"a": self.accumulated(c), "steps": c.steps}, {}

    def accumulated(self, c: Client) -> Tensor:
        """The L1 norm of the coefficients with which the local gradients enter w_t - w_k."""
        m = c.lr * c.fed.proximal
        m = min(m, 2 - m)  # the coefficients are powers of 1 - m; above 1 their signs alternate
        if abs(m) < 1e-12 or c.fed.optimiser != "sgd":  # so near 0 it is S in float32, also for many steps
            return c.pull
        # 1 - (1 - m)^S without the difference, in which a small m would vanish
        shrunk = -(c.steps.double() * torch.tensor(-m, dtype=torch.float64).log1p()).expm1()
        return (shrunk / m).to(c.steps.dtype)

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        p_K = torch.tensor(ups.shares_of_weight())
        a_K = ups["a"].cpu().to(p_K.dtype)
        tau = float(p_K @ (ups["steps"].cpu().to(p_K.dtype) if fed.proximal else a_K))
        merged = weighted_mean(w, ups)
        for n in fed.shared:
            scale = (tau * p_K / a_K).tolist()
            merged[n] = w[n] - sum(q * (w[n] - r.weights[n]) for q, r in zip(scale, ups.replies))
        return merged, s
