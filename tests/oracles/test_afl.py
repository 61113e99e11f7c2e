"""AFL (Mohri et al., ICML 2019, algorithm 1, as federated comparisons run it), lambda over all clients.

w_{t+1} = sum_k lambda_k w_k / sum_k lambda_k, of those that answered
lambda_k <- lambda_k + gamma / K F_k(w_t) for these;    lambda <- argmin over the simplex of ||. - lambda||
"""

import torch
from torch import Tensor

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg, cross_entropy
from tests.oracles.tiny import SIZES, Case, Weights
from tests.oracles.values import Reply


class AFL(FedAvg):
    part = "afl"
    step = 0.2

    def begin(self) -> None:
        self.slice = {"mixture": torch.tensor([n / sum(SIZES) for n in SIZES], dtype=torch.float64)}

    def merge(self, replies: list[Reply]) -> Weights:
        mixture = self.slice["mixture"].clone()
        total = sum(float(mixture[r.k]) for r in replies)
        w = dict(self.w)
        if total:
            w |= {
                n: torch.stack([mixture[r.k] / total * r.w[n] for r in replies]).sum(0) for n in replies[0].w
            }
        for r in replies:
            rows = self.given.rows(r.k)
            F_k = cross_entropy(self.evaluated(self.w, self.x[rows])[0], self.y[rows])
            mixture[r.k] += self.step / self.clients * F_k
        self.slice = {"mixture": nearest(mixture)}
        return w


def nearest(l_K: Tensor) -> Tensor:
    """The point of the simplex next to l, by bisecting for the number that is taken off every coordinate."""
    low, high = float(l_K.min()) - 1, float(l_K.max())
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if (l_K - middle).clamp(min=0).sum() > 1 else (low, middle)
    return (l_K - high).clamp(min=0)


def test_afl() -> None:
    """Client 2, which is not there in round 1, has no weight left when it comes."""
    agree(Case("cnn", 0.9), AFL, step=2.5)


def test_its_default() -> None:
    agree(Case(), AFL)
