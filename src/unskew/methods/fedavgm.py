"""FedAvgM (Hsu, Qi & Brown 2019, arXiv 1909.06335): momentum at the server.

Server: v <- beta v + (w_t - w-),   w_{t+1} = w_t - lr v      w-: the clients' weighted mean
Statistics of batch normalisation take the plain mean, because momentum could make a running variance
negative.
Differs from the paper: it used Nesterov momentum; ours is plain and undamped: v is not beta v + (1 - beta)
delta.
Defaults: beta is that of FedRDN's comparison, of FL-bench, and of FedAdam's authors in theirs.
"""

from dataclasses import dataclass
from typing import Annotated

import torch

from unskew.core import Fed, Part, Tree, Ups, Weights
from unskew.formats.setting_ranges import BelowOne, Rate
from unskew.merge.mean import weighted_mean


@dataclass(frozen=True)
class FedAvgM(Part):
    """Adds momentum to the server's step."""

    beta: Annotated[BelowOne, "share of the last step that is kept; 0 is FedAvg"] = 0.9
    lr: Annotated[Rate, "the server's learning rate, a factor on its step"] = 1.0
    name = "fedavgm"
    family = "merge"
    against = ("labels", "absence")
    use_when = "The global model oscillates from round to round because different clients answer every time."
    merges = True
    keeps_at_server = ("v",)

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        return {"v": {n: torch.zeros_like(w[n]) for n in fed.shared}}

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        mean = weighted_mean(w, ups)
        v = {n: self.beta * v_n + (w[n] - mean[n]) for n, v_n in s["v"].items()}
        return mean | {n: w[n] - self.lr * v_n for n, v_n in v.items()}, {"v": v}
