"""FML (Shen et al. 2020, eq. 6 and 7), both models of one architecture.

    L_own = alpha CE(z_own, y) + (1 - alpha) KL(p || p_own);    L = beta CE(z, y) + (1 - beta) KL(p_own || p)
Each descends its own loss with the other as a constant, at the same time. Clients answer with their own model.
"""

import torch
from torch import Tensor

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg, cross_entropy
from tests.oracles.tiny import Case
from tests.oracles.values import Client, Pass


class FML(FedAvg):
    part = "fml"
    alpha = 0.5
    beta = 0.5

    def keeps(self, name: str) -> bool:
        return name.startswith("fml.")

    def loss(self, c: Client, seen: Pass) -> Tensor:
        W, b, V, d = (c.extra[f"fml.{n}"] for n in ("fc.1.weight", "fc.1.bias", "head.weight", "head.bias"))
        z_own = torch.tanh(seen.x.flatten(1) @ W.T + b) @ V.T + d
        p, p_own = seen.z.softmax(1), z_own.softmax(1)
        common = self.beta * cross_entropy(seen.z, seen.y) + (1 - self.beta) * divergence(p_own.detach(), p)
        return common + self.alpha * cross_entropy(z_own, seen.y) + (1 - self.alpha) * divergence(p.detach(), p_own)

    def answers(self) -> dict[int, Tensor]:
        own = {k: {n.removeprefix("fml."): t for n, t in kept.items()} for k, kept in self.kept.items()}
        return {k: self.evaluated(w, self.tests_of(k))[0] for k, w in own.items()}


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """mean_i KL(p_i || q_i)."""
    return (p * (p / q).log()).sum(1).mean()


def test_fml() -> None:
    agree(Case(momentum=0.9), FML, alpha=0.3, beta=0.6)
