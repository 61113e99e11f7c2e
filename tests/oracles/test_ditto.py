"""Ditto (Li et al., ICML 2021, algorithm 1): v <- v - lr (grad f(v) + lam (v - w_t)) beside FedAvg, one step
each a batch.

v is a whole second model with running statistics of its own; it never leaves its client, which is scored by
it.
"""

import pytest
import torch
from torch import Tensor

from tests.oracles.agreement import agree
from tests.oracles.personal import Beside, logits_with
from tests.oracles.plain import cross_entropy
from tests.oracles.tiny import Case
from tests.oracles.values import Client, Pass


class Ditto(Beside):
    part = "ditto"
    lam = 1.0

    def own_loss(self, c: Client, v: dict[str, Tensor], seen: Pass) -> Tensor:
        far = torch.stack([(v[n] - c.start[n]).pow(2).sum() for n, _ in c.model.named_parameters()]).sum()
        return cross_entropy(logits_with(c.model, v, seen.x), seen.y) + self.lam / 2 * far


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_ditto(model: str) -> None:
    agree(Case(model, 0.9), Ditto, lam=0.5)
