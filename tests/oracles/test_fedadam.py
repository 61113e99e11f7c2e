"""FedOpt (Reddi et al., ICLR 2021, algorithm 2), with clients weighted by size.

    Delta = sum_k p_k (w_k - w_t);    m = beta1 m + (1 - beta1) Delta
    Adagrad  v = v + Delta^2;    Yogi  v = v - (1 - beta2) Delta^2 sign(v - Delta^2);    Adam  v = beta2 v +
    (1 - beta2) Delta^2 w_{t+1} = w_t + eta m / (sqrt(v) + tau),    v_{-1} = tau^2
Running statistics of batch normalisation take the plain mean.
"""

import pytest
import torch

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case, Weights
from tests.oracles.values import Reply


class FedAdam(FedAvg):
    part = "fedadam"
    lr = 0.01
    beta1 = 0.9
    beta2 = 0.99
    tau = 0.001
    rule = "adam"

    def begin(self) -> None:
        zeros = {n: torch.zeros_like(self.w[n]) for n in self.learned}
        self.slice = {"m": zeros, "v": {n: z + self.tau * self.tau for n, z in zeros.items()}}

    def merge(self, replies: list[Reply]) -> Weights:
        w, p = self.weighted_mean(replies), self.shares_of_weight(replies)
        for n in self.learned:
            Delta = torch.zeros_like(w[n])
            for p_k, r in zip(p, replies):
                Delta += p_k * (r.w[n] - self.w[n])
            m = self.slice["m"][n] = self.beta1 * self.slice["m"][n] + (1 - self.beta1) * Delta
            v = self.slice["v"][n]
            if self.rule == "adagrad":
                v = v + Delta**2
            elif self.rule == "yogi":
                v = v - (1 - self.beta2) * Delta**2 * torch.sign(v - Delta**2)
            else:
                v = self.beta2 * v + (1 - self.beta2) * Delta**2
            self.slice["v"][n] = v
            w[n] = self.w[n] + self.lr * m / (torch.sqrt(v) + self.tau)
        return w


@pytest.mark.parametrize(
    ("case", "rule"), [(Case("cnn", 0.9), "yogi"), (Case(), "adagrad")], ids=lambda v: str(v)
)
def test_the_other_rules(case: Case, rule: str) -> None:
    agree(case, FedAdam, rule=rule, tau=0.1, beta1=0.5)


def test_fedadam() -> None:
    agree(Case("cnn"), FedAdam, tau=0.1, lr=0.2)
