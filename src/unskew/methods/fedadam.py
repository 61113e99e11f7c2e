"""FedAdam, FedYogi and FedAdagrad (Reddi et al., ICLR 2021, arXiv 2003.00295, algorithm 2): adaptive steps.

Server: d = w- - w_t    w-: the clients' weighted mean
        m <- beta1 m + (1 - beta1) d
        adam:    v <- beta2 v + (1 - beta2) d^2
        yogi:    v <- v - (1 - beta2) d^2 sign(v - d^2)
        adagrad: v <- v + d^2
        w_{t+1} = w_t + lr m / (sqrt(v) + tau)    m begins at 0 and v at tau^2
Statistics of batch normalisation take the plain mean.
Differs from the paper: clients are weighted by size; algorithm 2 as printed weighs them equally. As in the
paper, and unlike Flower and the public code of FedExP, m and v have no bias correction. FL-bench begins v at
0, with lr = 0.1 and beta2 = 0.999, and has beta1 = 0.9 for adagrad, too.
Defaults: the authors tune lr and tau for every task; ours are their best for FedAdam and FedYogi on
Shakespeare. Over all tasks their best lr is 0.003 to 1, for FedAdagrad 0.03 to 10; beta2 = 0.99 is
FL-Simulator's, 0.999 that of the authors' code.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from unskew.core import Fed, Part, Tensor, Tree, Ups, Weights
from unskew.formats.setting_ranges import BelowOne, Rate
from unskew.merge.mean import weighted_mean


@dataclass(frozen=True)
class FedAdam(Part):
    """Takes an adaptive step at the server, with the clients' mean change as the gradient."""

    lr: Annotated[Rate, "the server's learning rate, roughly how far one step moves a weight"] = 0.01
    beta1: Annotated[BelowOne, "share of the mean change that is kept from round to round"] = 0.9
    beta2: Annotated[BelowOne, "share of the squared change that is kept; adagrad keeps all"] = 0.99
    tau: Annotated[Rate, "adaptivity: added to the root of v; large values give plain momentum"] = 0.001
    rule: Annotated[Literal["adam", "yogi", "adagrad"], "how squared changes are added up"] = "adam"
    name = "fedadam"
    presets = {"fedyogi": {"rule": "yogi"}, "fedadagrad": {"rule": "adagrad", "beta1": 0.0}}
    family = "merge"
    use_when = (
        "Some weights change rarely or little, such as embeddings and late layers, and need longer steps"
        " than others."
    )
    merges = True
    keeps_at_server = ("m", "v")

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        return {
            "m": {n: torch.zeros_like(w[n]) for n in fed.shared},
            "v": {n: torch.full_like(w[n], self.tau**2) for n in fed.shared},
        }

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        mean = weighted_mean(w, ups)
        m = {n: self.beta1 * m_n + (1 - self.beta1) * (mean[n] - w[n]) for n, m_n in s["m"].items()}
        v = {n: self._squares(v_n, (mean[n] - w[n]).square()) for n, v_n in s["v"].items()}
        stepped = {n: w[n] + self.lr * m_n / (v[n].sqrt() + self.tau) for n, m_n in m.items()}
        return mean | stepped, {"m": m, "v": v}

    def _squares(self, v: Tensor, square: Tensor) -> Tensor:
        """The next v from this round's squared change."""
        if self.rule == "adagrad":
            return v + square
        if self.rule == "yogi":
            return v - (1 - self.beta2) * square * (v - square).sign()
        return self.beta2 * v + (1 - self.beta2) * square
