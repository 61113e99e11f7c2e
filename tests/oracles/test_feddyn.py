"""FedDyn (Acar et al., ICLR 2021, algorithm 1), all m clients, of which P take part.

    w_k = argmin F_k(w) - <g_k, w> + alpha/2 ||w - w_t||^2;    g_k <- g_k - alpha (w_k - w_t)
    h <- h - alpha 1/m sum_{k in P} (w_k - w_t);               w_{t+1} = 1/|P| sum_{k in P} w_k - h / alpha
Running statistics of batch normalisation take the plain mean and enter neither g nor h.
"""

import torch
from torch import Tensor

from tests.oracles.agreement import agree, everywhere
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case, Tree, Weights
from tests.oracles.values import Client, Pass, Reply


class FedDyn(FedAvg):
    part = "feddyn"
    weighting = "equal"
    alpha = 0.0001

    def begin(self) -> None:
        self.slice = {"h": {n: torch.zeros_like(self.w[n]) for n in self.learned}}

    def arrive(self, c: Client) -> None:
        self.private.setdefault(c.k, {"g": {n: torch.zeros_like(p) for n, p in c.parameters.items()}})

    def loss(self, c: Client, seen: Pass) -> Tensor:
        loss = super().loss(c, seen)
        for n, p in c.parameters.items():
            loss = (
                loss - (self.private[c.k]["g"][n] * p).sum() + self.alpha / 2 * ((p - c.start[n]) ** 2).sum()
            )
        return loss

    def leave(self, c: Client) -> Tree:
        w = c.weights
        g = {n: g - self.alpha * (w[n] - c.start[n]) for n, g in self.private[c.k]["g"].items()}
        self.private[c.k] = {"g": g}
        return {}

    def merge(self, replies: list[Reply]) -> Weights:
        w = self.weighted_mean(replies)
        for n, h in self.slice["h"].items():
            h = h - self.alpha / self.clients * sum(r.w[n] - self.w[n] for r in replies)
            self.slice["h"][n] = h
            w[n] = w[n] - h / self.alpha
        return w


@everywhere
def test_feddyn(case: Case) -> None:
    agree(case, FedDyn, alpha=0.1)
