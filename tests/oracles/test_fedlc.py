"""FedLC (Zhang et al., ICML 2022, section 4): cross-entropy with logits calibrated by the client's class
counts.

    l = -log( exp(z_y - tau n_y^(-1/4)) / sum_c exp(z_c - tau n_c^(-1/4)) )
over the classes that the client has (a count of 0 is an infinite shift), the true one among them: the paper's
sum leaves it out. At test time logits are plain.
"""

from torch import Tensor

from tests.oracles.agreement import agree, everywhere
from tests.oracles.plain import FedAvg, cross_entropy
from tests.oracles.tiny import Case
from tests.oracles.values import Client, Pass


class FedLC(FedAvg):
    part = "fedlc"
    tau = 1.0

    def loss(self, c: Client, seen: Pass) -> Tensor:
        have = c.counts > 0
        return cross_entropy(seen.z[:, have] - self.tau / c.counts[have] ** 0.25, seen.y[:, have])


@everywhere
def test_fedlc(case: Case) -> None:
    agree(case, FedLC)


def test_a_stronger_calibration() -> None:
    agree(Case(), FedLC, tau=3.0)
    agree(Case(), FedLC, tau=0.0)
