"""FedAvgM (Hsu, Qi & Brown 2019): momentum at the server.

    Delta = w_t - sum_k p_k w_k;    v <- beta v + Delta;    w_{t+1} = w_t - lr v
Running statistics of batch normalisation take the plain mean.
"""

import torch

from tests.oracles.agreement import agree, everywhere
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case, Weights
from tests.oracles.values import Reply


class FedAvgM(FedAvg):
    part = "fedavgm"
    beta = 0.9
    lr = 1.0

    def begin(self) -> None:
        self.slice = {"v": {n: torch.zeros_like(self.w[n]) for n in self.learned}}

    def merge(self, replies: list[Reply]) -> Weights:
        w = self.weighted_mean(replies)
        for n, v in self.slice["v"].items():
            delta = self.w[n] - w[n]
            v.mul_(self.beta).add_(delta)
            w[n] = self.w[n] - self.lr * v
        return w


@everywhere
def test_fedavgm(case: Case) -> None:
    agree(case, FedAvgM, beta=0.7, lr=0.5)


def test_its_defaults() -> None:
    agree(Case(), FedAvgM)
