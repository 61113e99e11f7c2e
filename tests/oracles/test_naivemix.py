"""NaiveMix (Yoon et al., ICLR 2021, section 3.2): mixes a client's inputs with averages of other clients'
inputs.

Before round 1 every client shuffles its samples and sends the mean inputs and mean labels (x-, y-) of groups
of M. Every step takes one such pair for its whole batch:    x~ = (1 - lam) x + lam x-,    y~ = (1 - lam) y +
lam y- As in FLea's comparison (`per_batch`): lam ~ Beta(a, a) for each step, and a pair for each sample.
"""

import torch
from torch import Tensor

from tests.oracles.agreement import agree, everywhere, on_both_models
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case, Law
from tests.oracles.values import Client


class NaiveMix(FedAvg):
    part = "naivemix"
    lam = 0.1
    group = 5
    per_batch = False
    a = 2.0

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
        pairs = len(self.slice["y"])
        if self.per_batch:
            self.pairs = self.noise(c, "row", Law("cycle", (pairs,)))
            self.strength = self.noise(c, "lam", Law("beta", (self.a, self.a), per_sample=False))
        else:
            self.pairs = self.noise(c, "row", Law("integers", (pairs,), per_sample=False))

    def batch(self, c: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        lam = self.strength[c.step] if self.per_batch else self.lam
        pair = self.pairs[c.step][: len(x)] if self.per_batch else [int(self.pairs[c.step])] * len(x)
        mixed = [
            ((1 - lam) * x_i + lam * self.slice["x"][j], (1 - lam) * y_i + lam * self.slice["y"][j])
            for x_i, y_i, j in zip(x, y, pair)
        ]
        return torch.stack([x_i for x_i, _ in mixed]), torch.stack([y_i for _, y_i in mixed])


@everywhere
def test_naivemix(case: Case) -> None:
    agree(case, NaiveMix, lam=0.3, group=4)


def test_its_defaults() -> None:
    agree(Case(), NaiveMix)


@on_both_models
def test_another_average_for_every_sample(case: Case) -> None:
    """M19: what FLea's comparison calls FedMix mixed one average into a whole batch."""
    agree(case, NaiveMix, per_batch=True, group=4)
