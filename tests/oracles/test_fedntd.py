"""FedNTD (Lee et al., NeurIPS 2022, eq. 5 and 6): distillation from the received model of what is not true.

    l = CE(z, y) + beta tau^2 mean_i KL(q_g,i || q_l,i)
q_g, q_l: softmaxes at temperature tau of the received and of the local model's logits without the true class;
the received model is in evaluation mode and constant.
"""

import torch
from torch import Tensor

from tests.oracles.agreement import agree, everywhere, on_both_models
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case
from tests.oracles.values import Client, Pass


class FedNTD(FedAvg):
    part = "fedntd"
    beta = 1.0
    tau = 1.0

    def loss(self, c: Client, seen: Pass) -> Tensor:
        received = self.evaluated(c.start, seen.x)[0]
        far = torch.zeros(()).double()
        for z, g, y in zip(seen.z, received, seen.y.argmax(1).tolist()):
            others = [j for j in range(len(z)) if j != y]
            q_l, q_g = (z[others] / self.tau).softmax(0), (g[others] / self.tau).softmax(0)
            far = far + (q_g * (q_g / q_l).log()).sum()
        return super().loss(c, seen) + self.beta * self.tau**2 * far / len(seen.z)


@everywhere
def test_fedntd(case: Case) -> None:
    agree(case, FedNTD)


@on_both_models
def test_another_weight_and_temperature(case: Case) -> None:
    agree(case, FedNTD, beta=2.0, tau=3.0)
