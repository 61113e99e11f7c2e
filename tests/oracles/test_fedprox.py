"""FedProx (Li et al., MLSys 2020, eq. 2): h_k(w; w_t) = F_k(w) + mu / 2 ||w - w_t||^2, over trained
weights."""

from torch import Tensor

from tests.oracles.agreement import agree, everywhere
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case
from tests.oracles.values import Client, Pass


class FedProx(FedAvg):
    part = "fedprox"
    mu = 0.001

    def loss(self, c: Client, seen: Pass) -> Tensor:
        distance = sum(((p - c.start[n]) ** 2).sum() for n, p in c.parameters.items())
        return super().loss(c, seen) + self.mu / 2 * distance


@everywhere
def test_fedprox(case: Case) -> None:
    agree(case, FedProx, mu=0.5)


def test_its_default() -> None:
    agree(Case(), FedProx)
