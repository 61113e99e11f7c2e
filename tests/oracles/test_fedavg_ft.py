"""FedAvg-FT (the diagnostic of Fig. 1 of Xu et al., arXiv 2303.06314): the server trains the head on a
balanced set.

After every merge: epochs of SGD with momentum and weight decay on the cross-entropy of samples that no client
has, the same number of each class. The body stands still, in evaluation mode.
"""

from dataclasses import replace

import torch

from tests.oracles.agreement import agree, everywhere
from tests.oracles.plain import FedAvg, cross_entropy
from tests.oracles.tiny import CLASSES, Case, Weights
from tests.oracles.values import Reply

SEED = 4
"""With it, client 0 is left its only sample."""


class FedAvgFT(FedAvg):
    part = "fedavg_ft"
    each = 30
    epochs = 5
    batch_size = 50
    lr = 0.01
    momentum = 0.5
    weight_decay = 0.0005

    def server(self, replies: list[Reply], old: Weights) -> None:
        x, label = self.given.reserved()
        assert torch.bincount(label).tolist() == [self.each] * CLASSES
        x, y, model = (
            x.double(),
            torch.nn.functional.one_hot(label, CLASSES).double(),
            self.model_with(self.w).eval(),
        )
        head = list(model.head.parameters())  # type: ignore[union-attr]
        optimiser = torch.optim.SGD(head, self.lr, self.momentum, weight_decay=self.weight_decay)
        generator = self.given.generator(self.t, "fedavg_ft")
        for _ in range(self.epochs):
            for rows in torch.randperm(len(x), generator=generator).split(self.batch_size):
                optimiser.zero_grad()
                cross_entropy(model(x[rows]), y[rows]).backward()
                optimiser.step()
        self.w |= {n: p.detach().clone() for n, p in model.named_parameters()}


@everywhere
def test_fedavg_ft(case: Case) -> None:
    agree(replace(case, seed=SEED), FedAvgFT, each=3, epochs=2, batch_size=5, lr=0.1, weight_decay=0.1)


def test_its_defaults() -> None:
    agree(Case(seed=SEED), FedAvgFT, each=3)
