"""Elastic aggregation (Chen et al., CVPR 2023): w <- w + zeta (mean - w), zeta = 1 + tau - Om / max_k Om_k,
weight by weight.

Om_k <- mu Om_k + (1 - mu) |grad mean |z|^2| over client k's batches before it trains;    Om = sum_k n_k / n
Om_k.
"""

import torch

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case, Tree, Weights
from tests.oracles.values import Client, Reply


class Elastic(FedAvg):
    part = "elastic"
    tau = 0.5
    mu = 0.95
    over = "clients"

    def arrive(self, c: Client) -> None:
        old = self.private.get(c.k, {"omega": {n: torch.zeros_like(self.w[n]) for n in self.learned}})[
            "omega"
        ]
        for rows in self.given.rows(c.k).split(self.case.batch):
            model = self.model_with(self.w).eval()
            (model(self.x[rows]) ** 2).sum(1).mean().backward()
            g = {n: p.grad for n, p in model.named_parameters()}
            old = {n: self.mu * t + (1 - self.mu) * g[n].abs() for n, t in old.items()}  # type: ignore[union-attr]
        self.private[c.k] = {"omega": old}

    def leave(self, c: Client) -> Tree:
        return {"omega": self.private[c.k]["omega"]}

    def merge(self, replies: list[Reply]) -> Weights:
        mean, p = self.weighted_mean(replies), self.shares_of_weight(replies)
        stacked = {n: torch.stack([r.shared["omega"][n] for r in replies]) for n in self.learned}
        omega = {n: torch.einsum("k,k...->...", torch.tensor(p).double(), t) for n, t in stacked.items()}
        of_all = max(float(t.max()) for t in omega.values())
        for n, t in omega.items():
            part = torch.where(t > 0, t / (stacked[n].amax(0) if self.over == "clients" else of_all), 0.0)
            mean[n] = self.w[n] + (1 + self.tau - part) * (mean[n] - self.w[n])
        return mean


def test_elastic() -> None:
    agree(Case("cnn", 0.9, lr=0.02), Elastic, tau=0.3, mu=0.6)


def test_compared_with_the_most_sensitive_weight() -> None:
    agree(Case(), Elastic, over="weights")
