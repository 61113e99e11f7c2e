"""FedRoD (Chen & Chao, ICLR 2022, eq. 4 to 6, linear personal head).

Client k, n_kc its samples of class c, g(h) = W_G h + b_G, p(h) = W_P h + b_P:
    l = mean_i -log( n_ky e^{g_y} / sum_c n_kc e^{g_c} ) + mean_i CE(p(h) + g(h), y)      second term: only P
    learns
Server: the mean by size of all but P. Client k is scored by p + g on the server's features.
"""

import pytest
from torch import Tensor

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg, cross_entropy
from tests.oracles.tiny import Case
from tests.oracles.values import Client, Pass


class FedRoD(FedAvg):
    part = "fedrod"

    def keeps(self, name: str) -> bool:
        return name.startswith("fedrod.")

    def loss(self, c: Client, seen: Pass) -> Tensor:
        odds = c.counts * seen.z.exp()
        balanced = -((seen.y * odds).sum(1) / odds.sum(1)).log().mean()
        own = seen.h.detach() @ c.extra["fedrod.head.weight"].T + c.extra["fedrod.head.bias"]
        return balanced + cross_entropy(own + seen.z.detach(), seen.y)

    def answers(self) -> dict[int, Tensor]:
        return super().answers() | {k: self.own(k) for k in self.kept}

    def own(self, k: int) -> Tensor:
        z, h = self.evaluated(self.w, self.tests_of(k))
        return z + h @ self.kept[k]["fedrod.head.weight"].T + self.kept[k]["fedrod.head.bias"]


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_fedrod(model: str) -> None:
    agree(Case(model, 0.9), FedRoD)
