"""IFCA (Ghosh et al., NeurIPS 2020, algorithm 1 with model averaging).

    j_k = argmin_j F_k(th_j);    th_k = local SGD from th_j;    th_j <- mean of th_k over the clients with j_k
    = j
The models begin as th_0 and as th_0 with each tensor's numbers in another order. Nobody trains the mean of
all replies.
"""

import torch
from torch import Tensor

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg, cross_entropy, loaded
from tests.oracles.tiny import Case, Tree, Weights
from tests.oracles.values import Client, Reply


class IFCA(FedAvg):
    part = "ifca"
    weighting = "equal"
    clusters = 2

    def begin(self) -> None:
        self.models = [dict(self.w) for _ in range(self.clusters)]
        for j in range(1, self.clusters):
            for n, t in self.w.items():
                order = torch.randperm(t.numel(), generator=self.given.generator("ifca", n, j))
                self.models[j][n] = t.flatten()[order].reshape(t.shape)
        self.tell()

    def tell(self) -> None:
        self.slice = {"models": {n: torch.stack([th[n] for th in self.models]) for n in self.w}}

    def nearest(self, k: int) -> int:
        rows = self.given.rows(k)
        losses = [
            float(cross_entropy(self.evaluated(th, self.x[rows])[0], self.y[rows])) for th in self.models
        ]
        return losses.index(min(losses))

    def client(self, k: int) -> Client:
        c = super().client(k)
        c.start = self.models[self.nearest(k)]
        loaded(c.model, c.start)
        return c

    def leave(self, c: Client) -> Tree:
        return {"took": self.nearest(c.k)}

    def merge(self, replies: list[Reply]) -> Weights:
        for j in range(self.clusters):
            members = [r.w for r in replies if r.shared["took"] == j]
            if members:
                self.models[j] = {n: torch.stack([w[n] for w in members]).mean(0) for n in self.w}
        self.tell()
        return self.weighted_mean(replies)

    def answers(self) -> dict[int, Tensor]:
        own = {
            k: self.evaluated(self.models[self.nearest(k)], self.tests_of(k))[0] for k in range(self.clients)
        }
        return own | super().answers()


def test_ifca() -> None:
    agree(Case(), IFCA)


def test_three_clusters_and_momentum() -> None:
    agree(Case(momentum=0.9), IFCA, clusters=3)
