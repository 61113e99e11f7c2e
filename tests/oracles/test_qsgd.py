"""QSGD (Alistarh et al., NeurIPS 2017, section 3.1), with a round's change in place of a gradient, as FedPAQ
has it.

Q(v_i) = |v| sign(v_i) xi_i;    with l <= s |v_i| / |v| < l + 1:  xi_i = (l + 1) / s with probability s |v_i|
/ |v| - l, else l / s;    w <- w + sum_k p_k Q(w_k - w);    |v| the norm of i's bucket
"""

import math

import torch
from torch import Tensor

from tests.oracles.agreement import agree
from tests.oracles.encoding import Encoded
from tests.oracles.tiny import Case


class QSGD(Encoded):
    part = "qsgd"
    memory = False
    bits = 4
    bucket = 512
    norm = "max"

    def read(self, k: int, v: Tensor) -> Tensor:
        s, size = 2 ** (self.bits - 1) - 1, self.bucket or len(v)
        u, rounded = torch.rand(len(v), generator=self.draws(k, "rounding")), torch.zeros_like(v)
        for i, x in enumerate(v.tolist()):
            own = v[i // size * size : (i // size + 1) * size]
            norm = float(own.abs().max() if self.norm == "max" else own.pow(2).sum().sqrt())
            level = math.floor(s * abs(x) / norm)
            level += float(u[i]) >= 1 - (s * abs(x) / norm - level)
            rounded[i] = math.copysign(norm * level / s, x)
        return rounded


def test_qsgd() -> None:
    agree(Case("cnn", 0.9), QSGD, bucket=100)


def test_fedpaq() -> None:
    agree(Case(), QSGD, bits=8, bucket=0, norm="l2")
