"""Top-k with memory (Stich et al., NeurIPS 2018, algorithm 1), with a round's change in place of a gradient's
step.

v = (w_k - w) + e_k;    s_k = v where |v| is among the k largest, else 0;    e_k <- v - s_k;    w <- w + sum_k
p_k s_k
"""

import torch
from torch import Tensor

from tests.oracles.agreement import agree
from tests.oracles.encoding import Encoded
from tests.oracles.tiny import Case


class TopK(Encoded):
    part = "topk"
    share = 0.05

    def read(self, k: int, v: Tensor) -> Tensor:
        least = sorted(v.abs().tolist(), reverse=True)[: max(1, round(self.share * len(v)))][-1]
        return torch.where(v.abs() >= least, v, 0.0)


def test_topk() -> None:
    agree(Case("cnn", 0.9), TopK, share=0.1)


def test_without_memory() -> None:
    agree(Case(), TopK, memory=False)
