"""FedAMP (Huang et al., AAAI 2021): u_k = sum_j xi_kj v_j, and client k minimises f_k(w) + lam/2 |w - u_k|^2
from v_k.

A(d) = 1 - e^(-d / sigma), so that xi_kj = alpha A'(|v_k - v_j|^2) = alpha / sigma e^(-|v_k - v_j|^2 / sigma),
and xi_kk = 1 - sum_j xi_kj.   alpha = others sigma / (K - 1).   Distances are those of parameters, not of
statistics.
"""

import math
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from tests.oracles.agreement import agree
from tests.oracles.personal import Dispatched
from tests.oracles.plain import loaded
from tests.oracles.tiny import Case, Tree, Weights
from tests.oracles.values import Client, Pass, Reply
from unskew.core.replies import Reply as Sent
from unskew.core.replies import Ups
from unskew.methods.fedamp import FedAMP as Engine


class FedAMP(Dispatched):
    part = "fedamp"
    others = 0.5
    sigma = 1.0
    lam = 1.0

    def begin(self) -> None:
        self.v = [dict(self.w) for _ in range(self.clients)]
        self.server([], self.w)

    def sent_to(self, k: int) -> Weights:
        return {n: self.slice["u"][n][k] for n in self.w}

    def arrive(self, c: Client) -> None:
        loaded(c.model, self.own(c.k))

    def loss(self, c: Client, seen: Pass) -> Tensor:
        away = torch.stack(
            [(p - self.sent_to(c.k)[n]).pow(2).sum() for n, p in c.model.named_parameters()]
        ).sum()
        return super().loss(c, seen) + self.lam / 2 * away

    def leave(self, c: Client) -> Tree:
        self.private[c.k] = {"w": c.weights}
        return {}

    def server(self, replies: list[Reply], old: Weights) -> None:
        for r in replies:
            self.v[r.k] = r.w
        mixed: list[Weights] = []
        for k in range(self.clients):
            alpha = self.others * self.sigma / (self.clients - 1)
            xi = [alpha / self.sigma * math.exp(-self.apart(k, j) / self.sigma) for j in range(self.clients)]
            xi[k] = 1 - (sum(xi) - xi[k])
            mixed.append({n: sum(x * v[n] for x, v in zip(xi, self.v)) for n in self.w})  # type: ignore[misc]
        self.slice = {"v": self.rows(self.v), "u": self.rows(mixed)}

    def apart(self, k: int, j: int) -> float:
        return sum(float((self.v[k][n] - self.v[j][n]).pow(2).sum()) for n in self.learned)

    def own(self, k: int) -> Weights:
        return self.private[k]["w"] if k in self.private else self.sent_to(k)


def test_a_client_without_samples_sends_back_its_mixture() -> None:
    """Of three, the last one: in round 2 its model is u_2 of round 1, 2 * 0.25 / e of the others' 1, and no
    longer 0."""
    fed = SimpleNamespace(clients=3, shared=("w",), sizes=np.array([1, 1, 0]))
    s = {"v": {"w": torch.zeros(3, 1)}, "u": {"w": torch.zeros(3, 1)}}
    replies = Ups.of([Sent(k, 1.0, {"w": torch.ones(1)}) for k in (0, 1)], 1)
    s = Engine().server(s, replies, fed)  # type: ignore[arg-type]
    u = s["u"]["w"][2]
    torch.testing.assert_close(u, torch.tensor([0.5 / math.e]))
    torch.testing.assert_close(Engine().server(s, replies, fed)["v"]["w"][2], u)  # type: ignore[arg-type]


def test_fedamp() -> None:
    agree(Case("cnn", 0.9), FedAMP, others=0.8, lam=0.5, sigma=3.0)
