"""AdCol (Li, He & Song, ICML 2023, algorithm 1): clients deceive a discriminator that the server trains.

    client: CE + mu mean_i sum_k 1/K (log 1/K - log D_k(h_i));    server: D descends the cross-entropy of (h,
    whose it is)
D(h) = softmax(W2 relu(W1 relu(W0 h))). Its first weights and the order of features are given.
"""

import math

import torch
from torch import Tensor

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import SIZES, Case, Tree, Weights
from tests.oracles.values import Client, Pass, Reply


class AdCol(FedAvg):
    part = "adcol"
    mu = 0.5
    lr = 0.01
    epochs = 3
    width = 512
    aggregate_weights = False
    features = 7

    def keeps(self, name: str) -> bool:
        return not self.aggregate_weights

    def begin(self) -> None:
        generator, layers = self.given.generator("adcol", "discriminator"), {}
        shapes = [(self.width, self.features), (self.width, self.width), (len(SIZES), self.width)]
        for i, (out, inside) in enumerate(shapes):
            uniform = torch.rand(out, inside, generator=generator)
            layers[f"layer{i}"] = ((2 * uniform - 1) / math.sqrt(inside)).double()
        self.slice = {"D": layers}

    def log_D(self, h: Tensor) -> Tensor:
        W = self.slice["D"]
        return (((h @ W["layer0"].T).relu() @ W["layer1"].T).relu() @ W["layer2"].T).log_softmax(1)

    def loss(self, c: Client, seen: Pass) -> Tensor:
        K = len(SIZES)
        apart = sum((math.log(1 / K) - self.log_D(seen.h)[:, k]) / K for k in range(K))
        assert isinstance(apart, Tensor)
        return super().loss(c, seen) + self.mu * apart.mean()

    def leave(self, c: Client) -> Tree:
        return {"h": self.evaluated(c.weights, self.x[self.given.rows(c.k)])[1]}

    def server(self, replies: list[Reply], old: Weights) -> None:
        h, owner = (
            torch.cat([r.shared["h"] for r in replies]),
            torch.cat([torch.full((r.n,), r.k) for r in replies]),
        )
        generator = self.given.generator(self.t, "adcol")
        for _ in range(self.epochs):
            for rows in torch.randperm(len(h), generator=generator).split(self.case.batch):
                W = {n: t.detach().requires_grad_() for n, t in self.slice["D"].items()}
                self.slice = {"D": W}
                loss = -self.log_D(h[rows])[range(len(rows)), owner[rows]].mean()
                slopes = torch.autograd.grad(loss, list(W.values()))
                self.slice = {"D": {n: t.detach() - self.lr * g for (n, t), g in zip(W.items(), slopes)}}

    def answers(self) -> dict[int, Tensor]:
        if self.aggregate_weights:
            return super().answers()
        return {k: self.evaluated(kept, self.tests_of(k))[0] for k, kept in self.kept.items()}


def test_adcol() -> None:
    agree(Case("cnn"), AdCol, mu=2.0, lr=0.1, epochs=2, width=6)


def test_with_merged_weights() -> None:
    agree(Case(), AdCol, mu=2.0, lr=0.1, epochs=2, width=6, aggregate_weights=True)
