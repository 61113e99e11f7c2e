"""FedAvg-FT (ReBaFL's diagnostic, Fig. 1, arXiv 2303.06314): the server trains the head on a balanced set.

Server, after every merge: `epochs` of SGD on CE over `each` samples of every class
        only the head learns; the body runs in evaluation mode
Differs from the paper: its 30 samples of each class are the first of the test set that is then scored; ours
are training samples that no client receives.
Defaults: those of ReBaFL's public code.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le

from unskew.core import Fed, Part, Tensor, Tree, Weights, key
from unskew.formats.setting_ranges import BelowOne, Count, NonNegative, Rate


@dataclass(frozen=True)
class FedAvgFT(Part):
    """Trains the head again at the server after every merge."""

    each: Annotated[
        int, Ge(1), Le(100_000), "samples of every class that the server holds back from the clients"
    ] = 30
    epochs: Annotated[int, Ge(0), Le(10_000), "passes over these samples after every merge; 0 is FedAvg"] = 5
    batch_size: Annotated[Count, "samples in a step"] = 50
    lr: Annotated[Rate, "learning rate of SGD"] = 0.01
    momentum: Annotated[BelowOne, "momentum of SGD"] = 0.5
    weight_decay: Annotated[NonNegative, "L2 penalty of SGD"] = 0.0005
    name = "fedavg_ft"
    family = "classifier"
    equal_samples = True
    against = ("labels",)
    use_when = (
        "To see how much of a method's loss is due to the head; the server needs a few balanced samples."
    )
    tasks = ("classification",)
    needs = "samples of each class at the server"

    def refuse(self, fed: Fed) -> str | None:
        return fed.net.untrained_head(alone=True) or fed.nothing_common()

    @property
    def reserve(self) -> int:  # type: ignore[override]
        return self.each

    def refine(self, w: Weights, s: Tree, fed: Fed, t: int) -> tuple[Weights, Tree]:
        if fed.reserved is None or not self.epochs:
            return w, s
        training = HeadTraining(self.epochs, self.batch_size, self.lr, self.momentum, self.weight_decay)
        with torch.no_grad():
            h_ND = fed.net.features_of(w, fed.reserved.x)
        return w | train_head(w, h_ND, fed.reserved.y, fed, training, key(fed.seed, t, self.name)), s


@dataclass(frozen=True)
class HeadTraining:
    """Settings of the head's training."""

    epochs: int
    batch_size: int
    lr: float
    momentum: float
    weight_decay: float = 0.0


def train_head(
    w: Weights, h_ND: Tensor, y_NC: Tensor, fed: Fed, training: HeadTraining, generator: torch.Generator
) -> Weights:
    """The head's weights after SGD on features h and labels y; rows of classes without samples change only by
    decay."""
    head = {n: t.detach().clone().requires_grad_() for n, t in w.items() if fed.net.of_head(n)}
    absent_C = y_NC.sum(0) == 0
    sgd = torch.optim.SGD(
        list(head.values()), training.lr, training.momentum, weight_decay=training.weight_decay
    )
    for _ in range(training.epochs):
        for rows in torch.randperm(len(h_ND), generator=generator).to(h_ND.device).split(training.batch_size):
            with torch.enable_grad():
                z_BC = fed.net.head_of(w | head, h_ND[rows]).masked_fill(absent_C, -torch.inf)
                loss = fed.task.loss(z_BC, y_NC[rows]).mean()
            sgd.zero_grad()
            loss.backward()
            sgd.step()
    return {n: t.detach() for n, t in head.items()}
