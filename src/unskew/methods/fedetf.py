"""FedETF (Li et al., ICCV 2023, arXiv 2303.10058): all clients learn towards one fixed classifier.

Head:   V = sqrt(C / (C - 1)) U (I - 1 1^T / C), [C, C];   U orthonormal, drawn once
        the columns of V form equal angles
Model:  before the head a projection P = Linear(D, C);   v = P(h) / |P(h)|;   z = beta v V
        beta is trained, from 1 on
Client: CE(z + gamma log n_c, y)     n_c: its samples of class c; a class it lacks is masked out
Test:   z
Differs from the paper: the width of V is C, as in the official code with its LeNet; the paper allows more
(its small CNN: 64, and beta from 10 on). Its fine-tuning of projection and classifier for a client's own
score is left out.
Defaults: gamma is that of the official code.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Ge, Le
from torch import nn

from unskew.core import Batch, Client, Part, Tensor, with_head
from unskew.methods.bsm import conflicts_of_prior

_FIXED = "its layers would stand where the fixed classifier is"


class Unit(nn.Module):
    """Scales each row to length 1 and multiplies it by beta, which is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.beta * F.normalize(x, dim=1)


@dataclass(frozen=True)
class FedETF(Part):
    """Fixes the classifier to vectors at equal angles, and balances the loss by the client's label counts."""

    gamma: Annotated[
        float, Ge(0), Le(1000), "strength of the balance; 0 only masks the classes that a client lacks"
    ] = 1.0
    name = "fedetf"
    family = "classifier"
    against = ("labels",)
    use_when = (
        "Label skew makes clients' classifiers, and with them the features, point in different directions."
    )
    tasks = ("classification",)
    needs = "one direction for each class"
    clashes = {**conflicts_of_prior(name), "moon": _FIXED}

    def model(self, module: nn.Module, classes: int) -> nn.Module:
        return with_head(
            module,
            lambda D: nn.Sequential(nn.Linear(D, classes), Unit()),
            lambda old: etf_classifier(classes),
        )

    def logits(self, z: Tensor, b: Batch, c: Client) -> Tensor:
        balance_C = self.gamma * c.counts.clamp(min=1).log()
        return (z + balance_C).masked_fill(c.counts == 0, -torch.inf)


def etf_classifier(classes: int) -> nn.Linear:
    """The fixed classifier without bias, [C, C]: rows of length 1 at equal angles."""
    U = torch.linalg.qr(torch.randn(classes, classes))[0]
    V = (classes / (classes - 1)) ** 0.5 * U @ (torch.eye(classes) - 1 / classes)
    head = nn.Linear(classes, classes, bias=False)
    head.weight = nn.Parameter(V.T.contiguous(), requires_grad=False)
    return head
