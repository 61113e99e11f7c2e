"""PropFair (Zhang et al., TMLR 2023, eq. 8 and 13): a batch's loss l becomes -log_[eps](M - l).

log_[eps](u) = log u if u >= eps, else log eps + (u - eps) / eps
"""

import math

import torch
from torch import Tensor

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case
from tests.oracles.values import Client, Pass


class PropFair(FedAvg):
    part = "propfair"
    baseline = 2.0
    eps = 0.2

    def loss(self, c: Client, seen: Pass) -> Tensor:
        u = self.baseline - super().loss(c, seen)
        return -torch.log(u) if u >= self.eps else -(math.log(self.eps) + (u - self.eps) / self.eps)


def test_propfair() -> None:
    agree(Case("cnn", 0.9), PropFair)


def test_losses_beyond_the_baseline() -> None:
    """Some batches have losses above 1.4, others below."""
    agree(Case(), PropFair, baseline=1.5, eps=0.1)
