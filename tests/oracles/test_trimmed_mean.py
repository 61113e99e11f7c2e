"""Trimmed mean (Yin et al., ICML 2018, definition 2), of weights after local training.

    w_i <- mean of w_ki without the ceil(beta K) largest and as many smallest (less than half), at each
    coordinate i
Every client counts the same; running statistics of batch normalisation are treated as weights.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from tests.oracles.agreement import agree, everywhere
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import SIZES, Case, Weights
from tests.oracles.values import Reply

FOURS = ((0, 1, 3, 4), (1, 2, 3, 4), (0, 1, 2, 4))
ALL = (tuple(range(len(SIZES))),) * 3


class TrimmedMean(FedAvg):
    part = "trimmed_mean"
    share = 0.1

    def merge(self, replies: list[Reply]) -> Weights:
        return self.w | {n: self.trimmed([r.w[n] for r in replies]) for n in replies[0].w}

    def trimmed(self, values: list[Tensor]) -> Tensor:
        cut, flat = math.ceil(self.share * len(values)), [v.flatten().tolist() for v in values]
        if 2 * cut >= len(values):
            cut = (len(values) - 1) // 2
        merged = [sorted(at_i)[cut : len(values) - cut] for at_i in zip(*flat)]
        return torch.tensor([sum(rest) / len(rest) for rest in merged]).double().reshape(values[0].shape)


@everywhere
def test_trimmed_mean(case: Case) -> None:
    agree(replace(case, attendance=FOURS), TrimmedMean, share=0.25)


def test_its_default_trims_one_of_four_and_of_three() -> None:
    """M9: it was the mean below ten answering clients."""
    agree(Case("cnn"), TrimmedMean)


def test_trimming_two_of_five_at_each_end() -> None:
    agree(replace(Case("cnn"), attendance=ALL), TrimmedMean, share=0.4)
