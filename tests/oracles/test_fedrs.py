"""FedRS (Li & Zhan, KDD 2021, section 4): logits of classes that a client lacks are scaled down in training.

    l = CE(s z, y);    s_c = 1 where n_c > 0, alpha where n_c = 0;    soft: s_c = (1 - alpha) n_c / max_j n_j
    + alpha
At test time logits are plain.
"""

import torch
from torch import Tensor

from tests.oracles.agreement import agree, everywhere, on_both_models
from tests.oracles.plain import FedAvg, cross_entropy
from tests.oracles.tiny import Case
from tests.oracles.values import Client, Pass


class FedRS(FedAvg):
    part = "fedrs"
    alpha = 0.5
    soft = False

    def loss(self, c: Client, seen: Pass) -> Tensor:
        n = c.counts.tolist()
        if self.soft:
            s = [(1 - self.alpha) * n_c / max(n) + self.alpha for n_c in n]
        else:
            s = [1.0 if n_c else self.alpha for n_c in n]
        return cross_entropy(torch.tensor(s).double() * seen.z, seen.y)


@everywhere
def test_fedrs(case: Case) -> None:
    agree(case, FedRS)


@on_both_models
def test_rare_classes_are_scaled_down_too(case: Case) -> None:
    agree(case, FedRS, alpha=0.2, soft=True)


def test_missing_classes_without_any_logit() -> None:
    agree(Case(), FedRS, alpha=0.0)
