"""FedETF (Li et al., ICCV 2023, eq. 3, 6 and 7), with features as wide as there are classes.

v = P h / |P h|;   loss = -log( n_y^gamma exp(beta v_y . v) / sum_c n_c^gamma exp(beta v_c . v) );   V never
changes
"""

import torch
from torch import Tensor, nn

from tests.oracles.agreement import agree, on_both_models
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import CLASSES, Case, model_named
from tests.oracles.values import Client, Pass


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.beta * x / x.norm(dim=1)[:, None]


class FedETF(FedAvg):
    part = "fedetf"
    gamma = 1.0

    def model(self) -> nn.Sequential:
        *body, (_, head) = model_named(self.case.model).named_children()
        assert isinstance(head, nn.Linear)
        model = nn.Sequential()
        for name, block in body:
            model.add_module(name, block)
        model.add_module("projection", nn.Sequential(nn.Linear(head.in_features, CLASSES), Scaled()))
        model.add_module("head", nn.Linear(CLASSES, CLASSES, bias=False))
        return model

    def freezes(self, name: str) -> bool:
        return name == "head.weight"

    def loss(self, c: Client, seen: Pass) -> Tensor:
        total = torch.zeros(()).double()
        for z, y in zip(seen.z, seen.y.argmax(1)):
            share = c.counts**self.gamma * torch.exp(z) * (c.counts > 0)
            total = total - torch.log(share[y] / share.sum())
        return total / len(seen.z)


@on_both_models
def test_fedetf(case: Case) -> None:
    agree(case, FedETF, gamma=0.5)
