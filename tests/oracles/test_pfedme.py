"""pFedMe (Dinh, Tran & Nguyen, NeurIPS 2020, algorithm 1): w <- w - lr lam (w - theta), theta after K steps
of theta <- theta - rate (grad f(theta; batch) + lam (theta - w)) from w. Server: (1 - beta) w + beta mean by
size, of everything but running statistics, which take the mean and follow the first of the K passes alone.

Client k is scored by theta, found from the server's w over its shuffled batches in evaluation mode.
"""

import copy

import pytest
import torch
from torch import Tensor, nn

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg, cross_entropy
from tests.oracles.tiny import Case, Weights
from tests.oracles.values import Client, Pass, Reply


class PFedMe(FedAvg):
    part = "pfedme"
    lam = 15.0
    K = 5
    rate = 0.01
    beta = 1.0

    def loss(self, c: Client, seen: Pass) -> Tensor:
        self.x_step, self.y_step = seen.x, seen.y
        return super().loss(c, seen)

    def gradient(self, c: Client) -> None:
        first = [p.grad.clone() for p in c.model.parameters() if p.grad is not None]
        theta = copy.deepcopy(c.model)
        self.descend(theta, c.model, first)
        for _ in range(self.K - 1):
            self.descend(theta, c.model, self.slopes(theta, self.x_step, self.y_step))
        for p, q in zip(c.model.parameters(), theta.parameters()):
            p.grad = self.lam * (p - q)

    def slopes(self, model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            return list(torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters())))

    def descend(self, theta: nn.Module, w: nn.Module, slopes: list[Tensor]) -> None:
        with torch.no_grad():
            for q, p, g in zip(theta.parameters(), w.parameters(), slopes):
                q -= self.rate * (g + self.lam * (q - p))

    def merge(self, replies: list[Reply]) -> Weights:
        mean = self.weighted_mean(replies)
        return mean | {n: (1 - self.beta) * self.w[n] + self.beta * mean[n] for n in self.learned}

    def answers(self) -> dict[int, Tensor]:
        return super().answers() | {k: self.own(k) for k in range(self.clients)}

    def own(self, k: int) -> Tensor:
        w, theta = self.model_with(self.w).eval(), self.model_with(self.w).eval()
        for rows in self.given.sample(k, len(self.given.rows(k)), f"pfedme/{self.t}").split(self.case.batch):
            for _ in range(self.K):
                self.descend(theta, w, self.slopes(theta, self.x[rows], self.y[rows]))
        with torch.no_grad():
            return theta(self.tests_of(k))


@pytest.mark.parametrize(("model", "K", "beta"), [("cnn", 3, 0.5), ("mlp", 1, 1.0)])
def test_pfedme(model: str, K: int, beta: float) -> None:
    agree(Case(model, 0.9), PFedMe, lam=5.0, K=K, beta=beta, rate=0.05)
