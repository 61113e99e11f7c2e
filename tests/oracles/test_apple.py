"""APPLE (Luo & Wu, IJCAI 2022, eq. 5 to 8): W = sum_j p_j w_j; w_k and q = p - n_j / n descend F(W) + mu / 2
lam(r) |q|^2.

Core models are those that clients sent last. lam(r) = (cos(pi r / R) + 1) / 2 before round R = until T, then
0.
"""

import math

import torch
from torch import Tensor

from tests.oracles.agreement import agree
from tests.oracles.personal import Dispatched
from tests.oracles.tiny import SIZES, Case, Weights
from tests.oracles.values import Client, Reply


class APPLE(Dispatched):
    part = "apple"
    rate = 0.001
    mu = 0.1
    until = 0.2
    scaled = True

    def begin(self) -> None:
        self.first = torch.tensor(SIZES).double() / sum(SIZES)
        self.cores = [{n: t for n, t in self.w.items() if n != "apple.q"} for _ in SIZES]
        self.slice = {"w": self.rows(self.cores)}

    def keeps(self, name: str) -> bool:
        return name == "apple.q"

    def sent_to(self, k: int) -> Weights:
        return self.w | self.cores[k]

    def mixed(self, k: int, core: Weights, p: Tensor) -> Weights:
        cores = [core if j == k else self.cores[j] for j in range(self.clients)]
        return {n: sum(p[j] * w[n] for j, w in enumerate(cores)) for n in self.learned}  # type: ignore[misc]

    def batch(self, c: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The step's gradient is taken at W; the core model waits."""
        self.core = {n: p.detach().clone() for n, p in c.model.named_parameters()}
        with torch.no_grad():
            for n, t in self.mixed(c.k, self.core, self.first + c.extra["apple.q"]).items():
                dict(c.model.named_parameters())[n].copy_(t)
        return x, y

    def gradient(self, c: Client) -> None:
        q_k, along = c.extra["apple.q"], torch.zeros(self.clients).double()
        for n, q in c.model.named_parameters():
            assert q.grad is not None
            for j in range(self.clients):
                along[j] += (q.grad * (self.core[n] if j == c.k else self.cores[j][n])).sum()
            q.copy_(self.core[n])
            q.grad *= (self.first + q_k)[c.k] * (self.clients if self.scaled else 1)
        r, R = self.t - 1, self.until * self.case.rounds
        lam = (math.cos(math.pi * r / R) + 1) / 2 if r < R else 0
        q_k.grad = self.rate / c.lr * (along + self.mu * lam * q_k.detach())

    def server(self, replies: list[Reply], old: Weights) -> None:
        for r in replies:
            self.cores[r.k] = r.w
        self.slice = {"w": self.rows(self.cores)}

    def answers(self) -> dict[int, Tensor]:
        """Whoever was there has shares of its own."""
        own = {
            k: self.cores[k] | self.mixed(k, self.cores[k], self.first + kept["apple.q"])
            for k, kept in self.kept.items()
        }
        return {k: self.evaluated(w, self.tests_of(k))[0] for k, w in own.items()}


def test_apple() -> None:
    agree(Case("cnn", 0.9), APPLE, rate=0.02, mu=3.0, until=0.9)


def test_steps_as_in_the_paper() -> None:
    agree(Case(), APPLE, rate=0.02, scaled=False)
