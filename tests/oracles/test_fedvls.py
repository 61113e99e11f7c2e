"""FedVLS (Guo et al., AAAI 2025), sample by sample and class by class.

-log( p_y e^z_y / sum_c p_c e^z_c ) + lam KL over the classes the client lacks of (received, own)
+ mu sum_c p_c log( 1/B sum_i e^(0 if y_i = c else z_ic - log p_c - log C) )
"""

import torch
from torch import Tensor

from tests.oracles.agreement import agree, on_both_models
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import CLASSES, Case
from tests.oracles.values import Client, Pass


class FedVLS(FedAvg):
    part = "fedvls"
    lam = 0.1
    mu = 0.005

    def loss(self, c: Client, seen: Pass) -> Tensor:
        p, labels, B = c.counts / c.n, seen.y.argmax(1).tolist(), len(seen.x)
        received = self.evaluated(c.start, seen.x)[0]
        absent = [j for j in range(CLASSES) if not p[j]]
        total = torch.zeros(()).double()
        for z, g, y in zip(seen.z, received, labels):
            total = total - torch.log(p[y] * z[y].exp() / (p * z.exp()).sum()) / B
            if absent:
                q, r = g[absent].softmax(0), z[absent].softmax(0)
                total = total + self.lam * (q * (q / r).log()).sum() / B
        for j in (j for j in range(CLASSES) if p[j]):
            above = [torch.exp((z[j] - torch.log(p[j] * CLASSES)) * (y != j)) for z, y in zip(seen.z, labels)]
            total = total + self.mu * p[j] * torch.log(sum(above[1:], above[0]) / B)
        return total


@on_both_models
def test_fedvls(case: Case) -> None:
    agree(case, FedVLS, lam=2.0, mu=0.5)
