"""NaiveMix (Yoon et al., ICLR 2021, section 3.2): mixes a client's inputs with averages of other clients' inputs.

Before round 1 every client shuffles its samples and sends the mean inputs and mean labels (x-, y-) of groups of M.
Every step takes one such pair for its whole batch:    x~ = (1 - lam) x + lam x-,    y~ = (1 - lam) y + lam y-
"""

import torch
from torch import Tensor

from tests.oracles.agreement import agree, everywhere
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case, Law
from tests.oracles.values import Client


class NaiveMix(FedAvg):
    part = "naivemix"
    lam = 0.1
    group = 5

    def exchange(self, cohort: list[int]) -> None:
        if self.t > 0:
            return
        x, y = [], []
        for k in cohort:
            rows = self.given.sample(k, len(self.given.rows(k)), "naivemix")
            for first in range(0, len(rows), self.group):
                together = rows[first : first + self.group]
                x.append(self.x[together].mean(0))
                y.append(self.y[together].mean(0))
        self.slice = {"x": torch.stack(x), "y": torch.stack(y)}

    def arrive(self, c: Client) -> None:
        self.pairs = self.noise(c, "row", Law("integers", (len(self.slice["y"]),), per_sample=False))

    def batch(self, c: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        pair, lam = self.pairs[c.step], self.lam
        return (1 - lam) * x + lam * self.slice["x"][pair], (1 - lam) * y + lam * self.slice["y"][pair]


@everywhere
def test_naivemix(case: Case) -> None:
    agree(case, NaiveMix, lam=0.3, group=4)


def test_its_defaults() -> None:
    agree(Case(), NaiveMix)
