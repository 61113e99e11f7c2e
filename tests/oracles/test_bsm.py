"""Balanced softmax (Ren et al., NeurIPS 2020, eq. 4) with the label shares p of each client.

    l = -log( p_y exp(z_y) / sum_c p_c exp(z_c) )
A class that the client lacks has p_c = 0 and drops out of the sum. At test time logits are plain.
"""

from torch import Tensor

from tests.oracles.agreement import agree, everywhere
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case
from tests.oracles.values import Client, Pass


class BSM(FedAvg):
    part = "bsm"

    def loss(self, c: Client, seen: Pass) -> Tensor:
        p = c.counts / c.n
        weighed = p * seen.z.exp()
        return -((weighed * seen.y).sum(1) / weighed.sum(1)).log().mean()


@everywhere
def test_bsm(case: Case) -> None:
    agree(case, BSM)
