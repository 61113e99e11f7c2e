"""MoFedSAM (Qu et al., ICML 2022, arXiv 2206.02618, algorithm 2): FedSAM with the global step as momentum.

Client, at every step:  g = grad L(w),   e = rho g / |g|
        w <- w - lr (beta grad L(w + e) + (1 - beta) m)
Server: m <- (w_t - w_{t+1}) / mean_k(S_k lr)    S_k: client k's local steps; m = 0 in round 1
The merge weighs clients equally. Weights that are not shared take plain steps.
Differs from the paper: it takes S to be the same for all clients, ours takes their mean. With momentum in the
local optimiser, a step counts as often as it acts, as in SCAFFOLD. The server's step size is 1. Official code
clips gradients at norm 10.
Defaults: beta is that of FL-Simulator, which has rho = 0.1: on digits with dirichlet:0.1, 20 clients, 30
rounds, lr = 0.1 and one seed, scores were 39.2 % with 0.1 and 88.1 % with 0.05.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le

from unskew.core import Client, Fed, Part, Share, Tree, Ups, Weights
from unskew.formats.setting_ranges import PositiveFraction
from unskew.methods.fedsam import scale_to_norm
from unskew.methods.shared.weights import HEAD_FIRST_PARTS


@dataclass(frozen=True)
class MoFedSAM(Part):
    """Takes gradients where the loss is highest nearby, and mixes the last global step into each."""

    rho: Annotated[float, Ge(0), Le(1000), "how far the gradient is taken from the weights; 0 is FedCM"] = (
        0.05
    )
    beta: Annotated[
        PositiveFraction, "share of the client's own gradient in a step; the rest is the last global step"
    ] = 0.1
    name = "mofedsam"
    family = "steps"
    against = ("labels", "absence")
    use_when = (
        "As FedSAM, if few of many clients answer in a round, so that each needs the direction of the others."
    )
    climbs = 1
    weighting = "equal"
    keeps_at_server = ("w", "length")
    by_steps = "server"
    clashes = dict.fromkeys(
        HEAD_FIRST_PARTS,
        "it divides the last move by all local steps, and with the other the body rests in some",
    )

    def refuse(self, fed: Fed) -> str | None:
        return (
            None if fed.optimiser == "sgd" else "its momentum is in units of SGD's steps; set optimiser=sgd"
        )

    def shares(self, fed: Fed) -> dict[str, Share]:
        return {
            "length": Share(
                (), low=0, what="local steps times learning rate", kind="statistics", samples="client"
            )
        }

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        zeros = {n: torch.zeros_like(w[n]) for n in fed.shared}
        return {"m": zeros, "w": {n: w[n].clone() for n in fed.shared}, "length": torch.ones(())}

    def perturb(self, g: Weights, w: Weights, c: Client) -> Weights:
        return w | {n: w[n] + e for n, e in scale_to_norm(g, self.rho).items()}

    def grad(self, g: Weights, w: Weights, c: Client) -> Weights:
        return g | {n: self.beta * g[n] + (1 - self.beta) * m for n, m in c.down["m"].items()}

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        return {"length": c.pull * c.lr}, {}

    def server(self, s: Tree, ups: Ups, fed: Fed) -> Tree:
        return s | {"length": ups["length"].mean()}

    def refine(self, w: Weights, s: Tree, fed: Fed, t: int) -> tuple[Weights, Tree]:
        positive = s["length"] > 0  # a noisy mean may be negative; the last momentum then stays
        m = {n: torch.where(positive, (old - w[n]) / s["length"], s["m"][n]) for n, old in s["w"].items()}
        return w, s | {"m": m, "w": {n: w[n].clone() for n in m}}
