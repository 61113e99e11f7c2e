"""FedMix (Yoon et al., ICLR 2021, eq. 4 and algorithm 2): the loss of a mixture with others' averages, to
first order.

Before round 1 every client shuffles its samples and sends the mean inputs and mean labels (x-, y-) of groups
of M. Every step takes one such pair for its whole batch; with u_i = (1 - lam) x_i
    L = mean_i [ (1 - lam) CE(f(u_i), y_i) + lam CE(f(u_i), y-) + lam <d/du_i (1 - lam) CE(f(u_i), y_i), x-> ]
Batch normalisation makes the loss of a sample depend on other inputs; the derivative is of the batch's mean
loss.
"""

import torch
from torch import Tensor

from tests.oracles.agreement import agree, everywhere
from tests.oracles.plain import FedAvg, cross_entropy
from tests.oracles.tiny import Case, Law, Tree
from tests.oracles.values import Client, Pass


class FedMix(FedAvg):
    part = "fedmix"
    lam = 0.1
    group = 5

    def exchange(self, cohort: list[int]) -> None:
        if self.t > 0:
            return
        groups = []
        for k in cohort:
            rows = self.given.sample(k, len(self.given.rows(k)), "fedmix")
            groups += [rows[first : first + self.group] for first in range(0, len(rows), self.group)]
        self.slice: Tree = {
            "x": torch.stack([self.x[rows].mean(0) for rows in groups]),
            "y": torch.stack([self.y[rows].mean(0) for rows in groups]),
        }

    def arrive(self, c: Client) -> None:
        self.pairs = self.noise(c, "row", Law("integers", (len(self.slice["y"]),), per_sample=False))

    def batch(self, c: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return ((1 - self.lam) * x).requires_grad_(), y

    def loss(self, c: Client, seen: Pass) -> Tensor:
        lam, pair = self.lam, self.pairs[c.step]
        x_mean, y_mean = self.slice["x"][pair], self.slice["y"][pair].expand_as(seen.y)
        own = (1 - lam) * cross_entropy(seen.z, seen.y)
        (slope,) = torch.autograd.grad(own, seen.x, create_graph=True)
        return own + lam * cross_entropy(seen.z, y_mean) + lam * (slope * x_mean).sum()


@everywhere
def test_fedmix(case: Case) -> None:
    agree(case, FedMix, lam=0.3, group=4)


def test_its_defaults() -> None:
    agree(Case(), FedMix)
