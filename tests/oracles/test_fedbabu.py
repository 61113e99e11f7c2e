"""FedBABU (Oh, Kim & Yun, ICLR 2022, algorithm 1): the head keeps its random start, everything else is
averaged.

Momentum and weight decay do not touch the head either. For its own score a client trains the head on its
data, by SGD.
"""

from dataclasses import replace

import torch
from torch import Tensor

from tests.oracles.agreement import agree, everywhere
from tests.oracles.plain import FedAvg, cross_entropy
from tests.oracles.tiny import Case


class FedBABU(FedAvg):
    part = "fedbabu"
    finetune_epochs = 0
    lr = 0.0
    weighted = True

    @property
    def weighting(self) -> str:  # type: ignore[override]
        return "size" if self.weighted else "equal"

    def freezes(self, name: str) -> bool:
        return name.startswith("head.")

    def answers(self) -> dict[int, Tensor]:
        own = {k: self.finetuned(k) for k in range(self.clients)} if self.finetune_epochs else {}
        return super().answers() | own

    def finetuned(self, k: int) -> Tensor:
        """Client k's logits after SGD on its head, in minibatches of its shuffled samples."""
        model = self.model_with(self.w).eval()
        optimiser = torch.optim.SGD(model.head.parameters(), self.lr or self.case.rate(self.t))  # type: ignore[arg-type]
        for epoch in range(self.finetune_epochs):
            shuffled = self.given.sample(k, len(self.given.rows(k)), f"fedbabu/{self.t}/{epoch}")
            for rows in shuffled.split(self.case.batch):
                optimiser.zero_grad()
                cross_entropy(model(self.x[rows]), self.y[rows]).backward()
                optimiser.step()
        with torch.no_grad():
            return model(self.tests_of(k))


@everywhere
def test_fedbabu(case: Case) -> None:
    agree(case, FedBABU)
    agree(case, FedBABU, weighted=False)


@everywhere
def test_a_clients_own_score_is_taken_after_fine_tuning_its_head(case: Case) -> None:
    """M7: it took one step a pass on pieces of 256 unshuffled samples, not SGD with `batch`."""
    agree(case, FedBABU, finetune_epochs=3)
    agree(case, FedBABU, finetune_epochs=2, lr=0.5)
    agree(replace(case, batch=32), FedBABU, finetune_epochs=1)
