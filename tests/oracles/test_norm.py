"""Conventional normalisation (the baseline "norm" of Yan et al., CVPR 2025): x <- (x - mean) / std per
channel.

The same constants for everybody, in training and at test time.
"""

from dataclasses import replace

import torch
from torch import Tensor

from tests.oracles.agreement import agree, everywhere
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case
from tests.oracles.values import Client


class Norm(FedAvg):
    part = "norm"
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    def normalised(self, x: Tensor) -> Tensor:
        return torch.stack([(x[:, i] - m) / s for i, (m, s) in enumerate(zip(self.mean, self.std))], 1)

    def batch(self, c: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.normalised(x), y

    def answers(self) -> dict[int, Tensor]:
        return {k: self.evaluated(self.w, self.normalised(self.tests_of(k)))[0] for k in range(self.clients)}


@everywhere
def test_norm(case: Case) -> None:
    agree(replace(case, shape=(2, 6, 6)), Norm, mean=(0.3, -0.2), std=(1.5, 0.8))


def test_its_defaults() -> None:
    agree(replace(Case("cnn"), shape=(3, 6, 6), lr=0.01), Norm)
