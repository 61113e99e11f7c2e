"""EF-signSGD (Karimireddy et al., ICML 2019, algorithm 1, by layers), with a round's change in place of a
gradient's step.

p = (w_k - w) + e_k;    s_k = |p|_1 / d sign(p) for each tensor of d numbers;    e_k <- p - s_k;    w <- w +
sum_k p_k s_k
"""

import torch
from torch import Tensor

from tests.oracles.agreement import agree
from tests.oracles.encoding import Encoded
from tests.oracles.tiny import Case


class EFSign(Encoded):
    part = "efsign"

    def read(self, k: int, v: Tensor) -> Tensor:
        scaled = [p.abs().sum() / p.numel() * torch.where(p < 0, -1.0, 1.0) for p in self.parts(v).values()]
        return torch.cat([t.flatten() for t in scaled])


def test_efsign() -> None:
    agree(Case(), EFSign)
