"""FML (Shen et al. 2020, eq. 6 and 7), both models of one architecture.

    L_own = alpha CE(z_own, y) + (1 - alpha) KL(p || p_own);    L = beta CE(z, y) + (1 - beta) KL(p_own || p)
Each descends its own loss with the other as a constant, at the same time. Clients answer with their own
model.
"""

import pytest
from torch import Tensor

from tests.oracles.agreement import agree
from tests.oracles.personal import Beside, logits_with
from tests.oracles.plain import cross_entropy
from tests.oracles.tiny import Case
from tests.oracles.values import Client, Pass


class FML(Beside):
    part = "fml"
    alpha = 0.5
    beta = 0.5

    def loss(self, c: Client, seen: Pass) -> Tensor:
        z_own = logits_with(c.model, self.named(c), seen.x)
        p, p_own = seen.z.softmax(1), z_own.softmax(1)
        common = self.beta * cross_entropy(seen.z, seen.y) + (1 - self.beta) * divergence(p_own.detach(), p)
        return (
            common
            + self.alpha * cross_entropy(z_own, seen.y)
            + (1 - self.alpha) * divergence(p.detach(), p_own)
        )


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """mean_i KL(p_i || q_i)."""
    return (p * (p / q).log()).sum(1).mean()


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_fml(model: str) -> None:
    agree(Case(model, 0.9), FML, alpha=0.3, beta=0.6)
