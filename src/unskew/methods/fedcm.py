"""FedCM (Xu et al. 2021, arXiv 2106.10874): server momentum in every local step.

Client: g <- alpha g + (1 - alpha) D    D: `c.down["delta"]`; 0 in round 1
        sends a_k lr;   a_k = S local steps for plain SGD, with momentum the sum of the weights of
        all steps' gradients
Server: D <- (w_t - w_{t+1}) / mean_k (a_k lr)
D is the change made by the method's merge, whichever it is, in units of a gradient. The merge weighs clients
equally, as the mean of a_k does. With weights by size, clients that take more steps would count for more than
that mean assumes, and D would grow in every round until it overflows.
Differs from the paper: the server's step size is fixed at 1. The paper's a_k is the same S for all. Weight
decay is added after the mixture, as in public reproductions.
Defaults: alpha is that of FL-Simulator.
"""

from dataclasses import dataclass
from typing import Annotated

import torch

from unskew.core import Client, Fed, Part, Share, Tree, Ups, Weights
from unskew.formats.setting_ranges import PositiveFraction
from unskew.methods.shared.weights import HEAD_FIRST_PARTS


@dataclass(frozen=True)
class FedCM(Part):
    """Mixes every local gradient with the last step of the global model."""

    alpha: Annotated[PositiveFraction, "share of a client's own gradient in its steps; 1: all of it"] = 0.1
    name = "fedcm"
    family = "steps"
    against = ("labels", "absence")
    use_when = (
        "Few of many clients answer a round, so their states would be stale: the momentum is the server's."
    )
    weighting = "equal"
    keeps_at_server = ("before", "pull")
    by_steps = "server"
    clashes = dict.fromkeys(
        HEAD_FIRST_PARTS,
        "it divides the last move by all local steps, and with the other the body rests in some",
    )

    def refuse(self, fed: Fed) -> str | None:
        if fed.optimiser == "sgd":
            return None
        return "its momentum is in units of a gradient of SGD; set optimiser=sgd"

    def shares(self, fed: Fed) -> dict[str, Share]:
        what = "accumulated weight of the local steps, times the learning rate"
        return {"pull": Share((), low=0, what=what, kind="statistics", samples="client")}

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        return {
            "delta": {n: torch.zeros_like(w[n]) for n in fed.shared},
            "before": {n: w[n].clone() for n in fed.shared},
            "pull": torch.ones(()),
        }

    def grad(self, g: Weights, w: Weights, c: Client) -> Weights:
        return g | {n: self.alpha * g[n] + (1 - self.alpha) * d for n, d in c.down["delta"].items()}

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        return {"pull": c.pull * c.lr}, {}

    def server(self, s: Tree, ups: Ups, fed: Fed) -> Tree:
        return s | {"pull": ups["pull"].mean(0)}

    def refine(self, w: Weights, s: Tree, fed: Fed, t: int) -> tuple[Weights, Tree]:
        positive = s["pull"] > 0  # a noisy mean may be negative; the last step then stays
        delta = {
            n: torch.where(positive, (old - w[n]) / s["pull"], s["delta"][n])
            for n, old in s["before"].items()
        }
        return w, s | {"delta": delta, "before": {n: w[n].clone() for n in delta}}
