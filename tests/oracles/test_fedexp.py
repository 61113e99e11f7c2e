"""FedExP (Jhunjhunwala et al., ICLR 2023, algorithm 1): Delta_k = w_t - w_k of M clients, Delta their mean.

    eta_g = max(1, sum_k ||Delta_k||^2 / (2 M (||Delta||^2 + eps)));    w_{t+1} = w_t - eta_g Delta
The last model is the average of w_T and w_{T-1}. Running statistics of batch normalisation take the plain
mean.
"""

import torch

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case, Weights
from tests.oracles.values import Reply


class FedExP(FedAvg):
    part = "fedexp"
    weighting = "equal"
    eps = 0.001
    average = True
    weighted = False

    def merge(self, replies: list[Reply]) -> Weights:
        if self.weighted:
            self.weighting = "size"
        w, p = self.weighted_mean(replies), self.shares_of_weight(replies)

        def squared(other: Weights) -> float:
            return float(torch.cat([(self.w[n] - other[n]).flatten() for n in self.learned]).norm() ** 2)

        apart = sum(p_k * squared(r.w) for p_k, r in zip(p, replies))
        eta = max(1.0, apart / 2 / (squared(w) + self.eps))
        stepped = {n: self.w[n] - eta * (self.w[n] - w[n]) for n in self.learned}
        if self.average and self.t == self.case.rounds:
            stepped = {n: (self.w[n] + v) / 2 for n, v in stepped.items()}
        return w | stepped


def test_fedexp() -> None:
    """Without eps, two steps are longer than 1."""
    agree(Case("cnn", 0.9), FedExP, eps=0.0)


def test_weighted_by_size_and_without_the_average() -> None:
    agree(Case(), FedExP, weighted=True, average=False)
