"""FedNova (Wang et al., NeurIPS 2020, eq. 5 and 9): normalised averaging.

    w_t - w_k = lr sum_s a_ks g_k(s):    the gradient of step s of S enters with the coefficient a_ks
    d_k = (w_t - w_k) / ||a_k||_1;    tau_eff = sum_k p_k ||a_k||_1;    w_{t+1} = w_t - tau_eff sum_k p_k d_k
Plain SGD has a_ks = 1, momentum rho has a_ks = 1 + rho + ... + rho^(S - 1 - s). With FedProx the pull of each
later step shrinks what came before, a_ks = (1 - lr mu)^(S - 1 - s), and tau_eff = sum_k p_k S_k, as in the
public code. Running statistics of batch normalisation take the plain mean.
"""

import pytest
from torch import Tensor

from tests.oracles.agreement import agree, everywhere
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case, Weights
from tests.oracles.values import Client, Pass, Reply
from unskew.errors import UsageError
from unskew.methods import registry


class FedNova(FedAvg):
    part = "fednova"

    def accumulated(self, steps: int) -> float:
        """||a_k||_1, by adding up every coefficient."""
        total = 0.0
        for s in range(steps):
            total += sum(self.case.momentum**later for later in range(steps - s))
        return total

    def effective_steps(self, replies: list[Reply], a: list[float]) -> float:
        return sum(p_k * a_k for p_k, a_k in zip(self.shares_of_weight(replies), a))

    def merge(self, replies: list[Reply]) -> Weights:
        w, p, a = (
            self.weighted_mean(replies),
            self.shares_of_weight(replies),
            [self.accumulated(r.steps) for r in replies],
        )
        tau = self.effective_steps(replies, a)
        for n in self.learned:
            d = [(self.w[n] - r.w[n]) / a_k for a_k, r in zip(a, replies)]
            w[n] = self.w[n] - tau * sum(p_k * d_k for p_k, d_k in zip(p, d))
        return w


@everywhere
def test_fednova(case: Case) -> None:
    agree(case, FedNova)


class WithFedProx(FedNova):
    beside = "+fedprox"

    pull = 0.001

    def loss(self, c: Client, seen: Pass) -> Tensor:
        apart = sum(((p - c.start[n]) ** 2).sum() for n, p in c.parameters.items())
        return super().loss(c, seen) + self.pull / 2 * apart

    def accumulated(self, steps: int) -> float:
        return sum((1 - self.case.rate(self.t) * self.pull) ** later for later in range(steps))

    def effective_steps(self, replies: list[Reply], a: list[float]) -> float:
        return sum(p_k * r.steps for p_k, r in zip(self.shares_of_weight(replies), replies))


class WithStrongFedProx(WithFedProx):
    beside = "+fedprox(mu=1.0)"
    pull = 1.0


@pytest.mark.parametrize("case", [Case("mlp"), Case("cnn")], ids=lambda c: c.model)
@pytest.mark.parametrize("oracle", [WithFedProx, WithStrongFedProx])
def test_fednova_reads_the_mu_of_the_fedprox_beside_it(case: Case, oracle: type[FedNova]) -> None:
    """M6: fednova+fedprox ignored FedProx's mu, 46 % off at mu = 1."""
    agree(case, oracle)


def test_fednova_refuses_a_pull_with_momentum() -> None:
    """M6: there is no closed form for both, and a mu of its own that differed from FedProx's was accepted."""
    with pytest.raises(
        UsageError, match=r"E108 'fednova' cannot run here: .* FedProx with momentum; set momentum=0"
    ):
        agree(Case("mlp", 0.9), WithFedProx)
    with pytest.raises(UsageError, match="E102 method 'fednova' has no argument 'mu'"):
        registry.parse("fednova(mu=0.5)")
