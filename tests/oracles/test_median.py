"""Coordinate-wise median (Yin et al., ICML 2018, definition 1), of weights after local training.

    w_i <- median of w_ki over clients k; of an even number, the mean of the middle two
Every client counts the same; running statistics of batch normalisation are treated as weights.
"""

import numpy as np
import torch
from torch import Tensor

from tests.oracles.agreement import agree, everywhere
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case, Weights
from tests.oracles.values import Reply


class Median(FedAvg):
    part = "median"

    def merge(self, replies: list[Reply]) -> Weights:
        return self.w | {n: self.middle([r.w[n] for r in replies]) for n in replies[0].w}

    def middle(self, values: list[Tensor]) -> Tensor:
        return torch.as_tensor(np.median(np.stack([v.numpy() for v in values]), axis=0))


@everywhere
def test_median(case: Case) -> None:
    agree(case, Median)
