"""FedProx (Li et al., MLSys 2020, arXiv 1812.06127).

Client: loss + (mu/2) ||w - w_t||^2    over trainable weights
Differs from the paper: nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from unskew.core.client import Client
from unskew.core.part import Batch, Out, Part
from unskew.core.trees import Weights


@dataclass(frozen=True)
class FedProx(Part):
    """mu: strength of the pull towards the global model, >= 0."""

    mu: float = 0.001
    name: ClassVar[str] = "fedprox"

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor:
        squares = [(w[n] - c.start[n].detach()).pow(2).sum() for n in c.net.trainable]
        return self.mu / 2 * sum(squares[1:], squares[0])
