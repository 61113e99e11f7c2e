"""FedDecorr (Shi et al., ICLR 2023, eq. 6 and 7): features of a batch should not repeat each other.

    paper:  L = ||K||_F^2 / D^2,  K: the features' correlation matrix over the batch
    code:   L = sum_{i != j} (sum_b u_bi u_bj)^2 / (D (D - 1)) / n,  u: features standardised with the
    unbiased variance
The loss is CE + beta L. Both forms add 1e-8 to variances; a batch of one sample has no L.
"""

import torch
from torch import Tensor

from tests.oracles.agreement import agree, everywhere, on_both_models
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case
from tests.oracles.values import Client, Pass


class FedDecorr(FedAvg):
    part = "feddecorr"
    beta = 0.1
    form = "code"

    def loss(self, c: Client, seen: Pass) -> Tensor:
        loss = super().loss(c, seen)
        return loss + self.beta * self.repeated(seen.h) if len(seen.h) > 1 else loss

    def repeated(self, h_BD: Tensor) -> Tensor:
        n, D = h_BD.shape
        centred = h_BD - h_BD.mean(0)
        if self.form == "paper":
            u = centred / (centred.pow(2).sum(0) / n + 1e-8).sqrt()
            K = u.T @ u / n
            return K.pow(2).sum() / D**2
        u = centred / (centred.pow(2).sum(0) / (n - 1) + 1e-8).sqrt()
        pairs = [(u[:, i] * u[:, j]).sum() ** 2 for i in range(D) for j in range(D) if i != j]
        return torch.stack(pairs).mean() / n


ILL = 1e-4
"""Standardising divides by deviations near zero, which makes the last bits larger; those differ by
processor."""


@everywhere
def test_feddecorr(case: Case) -> None:
    agree(case, FedDecorr, atol=ILL)


@on_both_models
def test_the_form_in_the_paper(case: Case) -> None:
    agree(case, FedDecorr, atol=ILL, form="paper")
