"""SCAFFOLD (Karimireddy et al., ICML 2020, algorithm 1, option II, global step size 1).

    y <- y - lr (g_k(y) - c_k + c), K steps;    c_k+ = c_k - c + (x - y) / (K lr)
    x <- x + 1/|S| sum_k (y_k - x);             c <- c + 1/N sum_k (c_k+ - c_k)
With momentum rho the steps of y count K - s times over, as in FedNova: K becomes the sum of 1 + rho + ... +
rho^(K-1-s).
"""

import torch

from tests.oracles.agreement import agree, everywhere
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case, Tree, Weights
from tests.oracles.values import Client, Reply


class Scaffold(FedAvg):
    part = "scaffold"
    weighting = "equal"

    def zeros(self) -> Weights:
        return {n: torch.zeros_like(self.w[n]) for n in self.learned}

    def begin(self) -> None:
        self.slice = {"c": self.zeros()}

    def arrive(self, c: Client) -> None:
        self.private.setdefault(c.k, {"c": self.zeros()})

    def gradient(self, c: Client) -> None:
        for n, p in c.parameters.items():
            assert p.grad is not None
            p.grad += self.slice["c"][n] - self.private[c.k]["c"][n]

    def leave(self, c: Client) -> Tree:
        rho = self.case.momentum
        K = sum(sum(rho**later for later in range(c.steps - s)) for s in range(c.steps))
        y, old = c.weights, self.private[c.k]["c"]
        new = {n: old[n] - self.slice["c"][n] + (c.start[n] - y[n]) / (K * c.lr) for n in old}
        self.private[c.k] = {"c": new}
        return {"delta": {n: new[n] - old[n] for n in old}}

    def server(self, replies: list[Reply], old: Weights) -> None:
        for n, c in self.slice["c"].items():
            self.slice["c"][n] = c + sum(r.shared["delta"][n] for r in replies) / self.clients


@everywhere
def test_scaffold(case: Case) -> None:
    agree(case, Scaffold)
