"""FedCP (Zhang et al., KDD 2023, eq. 2 to 7): CE(P(h r) + G(h (1 - r))) + lam MMD(h, h_t); the policy r is
learned, G constant.

(r, 1 - r) = softmax of two halves of relu(LayerNorm(linear(h u))) and Gumbel noise; u the normalised sum of
P's rows at the round's start. (P + G) / 2 is merged as the head. At test time there is no noise.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg, cross_entropy
from tests.oracles.tiny import Case, Law, Weights
from tests.oracles.values import Client, Pass, Reply

D = 7


class FedCP(FedAvg):
    part = "fedcp"
    lam = 5.0

    def keeps(self, name: str) -> bool:
        return name.startswith("fedcp.head") or name == "fedcp.on"

    def freezes(self, name: str) -> bool:
        return name == "fedcp.on"

    def loss(self, c: Client, seen: Pass) -> Tensor:
        drawn = self.noise(c, "u", Law("uniform", shape=(2, D)))[c.step][: len(seen.h)]
        gumbel = -torch.log(-torch.log(drawn))
        z = self.divided(dict(c.extra), c.start, seen.h, gumbel)
        return cross_entropy(z, seen.y) + self.lam * mmd(seen.h, self.evaluated(c.start, seen.x)[1])

    def divided(self, w: Weights, start: Weights, h: Tensor, gumbel: Tensor | float) -> Tensor:
        rows = start["fedcp.head.weight"].sum(0)
        a = layer_norm((h * rows / rows.norm()) @ w["fedcp.map"].T + w["fedcp.shift"], (2 * D,))
        a = torch.relu(a * w["fedcp.norm"][0] + w["fedcp.norm"][1]).reshape(-1, 2, D)
        r = (a + gumbel).softmax(1)
        own = (h * r[:, 0]) @ w["fedcp.head.weight"].T + w["fedcp.head.bias"]
        return own + (h * r[:, 1]) @ start["head.weight"].T + start["head.bias"]

    def train(self, k: int) -> Reply:
        reply = super().train(k)
        own = {n: self.kept[k][f"fedcp.{n}"] for n in ("head.weight", "head.bias")}
        return replace(reply, w=reply.w | {n: (self.w[n] + t) / 2 for n, t in own.items()})

    def answers(self) -> dict[int, Tensor]:
        return super().answers() | {k: self.own(self.w | kept, k) for k, kept in self.kept.items()}

    def own(self, w: Weights, k: int) -> Tensor:
        return self.divided(w, w, self.evaluated(w, self.tests_of(k))[1], 0.0)


def mmd(h: Tensor, g: Tensor) -> Tensor:
    def k(a: Tensor, b: Tensor) -> Tensor:
        apart = (a[:, None] - b).pow(2).sum(2)
        return sum(torch.exp(-apart / (2 * s)) for s in (10, 15, 20, 50)).mean()  # type: ignore[union-attr]

    return k(h, h) + k(g, g) - 2 * k(h, g)


def test_fedcp() -> None:
    agree(Case("cnn", 0.9, lr=0.02), FedCP, lam=0.7)


def test_fedcp_with_adam() -> None:
    """SGD leaves the sum of the own head's rows as it was; only with Adam does u depend on when it is taken.

    Adam divides small gradients by themselves and amplifies float32 rounding, hence the tolerance.
    """
    agree(Case("cnn", lr=0.01, optimiser="adam"), FedCP, atol=5e-4, lam=0.7)
