"""FedIIR (Guo et al., ICML 2023, eq. 6 to 8): the gradient of the head on each client's batch is held to its
mean over clients.

m <- ema m + (1 - ema) mean over samples of grad_head CE at w_t;    loss = CE + gamma ||grad_head CE(batch) -
m||^2
"""

import torch
from torch import Tensor

from tests.oracles.agreement import agree, on_both_models
from tests.oracles.plain import FedAvg, cross_entropy
from tests.oracles.tiny import CLASSES, Case
from tests.oracles.values import Client, Pass


class FedIIR(FedAvg):
    part = "fediir"
    gamma = 0.001
    ema = 0.95

    def begin(self) -> None:
        self.slice = {"m": torch.zeros(CLASSES, 8).double()}

    def exchange(self, cohort: list[int]) -> None:
        if self.t == self.case.rounds:
            return
        rows = torch.cat([self.given.rows(k) for k in cohort])
        h = self.evaluated(self.w, self.x[rows])[1]
        W, b = self.w["head.weight"].clone().requires_grad_(), self.w["head.bias"].clone().requires_grad_()
        mean = torch.cat(
            [
                g.reshape(CLASSES, -1)
                for g in torch.autograd.grad(cross_entropy(h @ W.T + b, self.y[rows]), [W, b])
            ],
            1,
        )
        self.slice = {"m": self.ema * self.slice["m"] + (1 - self.ema) * mean}

    def loss(self, c: Client, seen: Pass) -> Tensor:
        loss = cross_entropy(seen.z, seen.y)
        head = [c.parameters["head.weight"], c.parameters["head.bias"]]
        slopes = [g.reshape(CLASSES, -1) for g in torch.autograd.grad(loss, head, create_graph=True)]
        return loss + self.gamma * ((torch.cat(slopes, 1) - self.slice["m"]) ** 2).sum()


@on_both_models
def test_fediir(case: Case) -> None:
    agree(case, FedIIR, gamma=2.0, ema=0.7)
