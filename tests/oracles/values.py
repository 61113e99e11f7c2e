"""What the hooks of an oracle are handed, and what it leaves after a round.

Letters: B batch, C classes, D features.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from tests.oracles.tiny import Tree, Weights, weights_of


@dataclass
class Client:
    """A client at work. model: what it trains; extra: weights trained beside it; start: the weights it began
    with.

    step counts from 0 to `steps` - 1; rows: the samples of this step.
    """

    k: int
    n: int
    counts: Tensor
    steps: int
    lr: float
    model: nn.Sequential
    extra: dict[str, nn.Parameter]
    start: Weights
    step: int = 0
    rows: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Everything that has a gradient, by name."""
        return dict(self.model.named_parameters()) | self.extra

    @property
    def weights(self) -> Weights:
        """Parameters and running statistics as they are now, constants."""
        return weights_of(self.model) | {n: p.detach().clone() for n, p in self.extra.items()}


@dataclass(frozen=True)
class Pass:
    """One forward pass: inputs, targets [B, C], logits [B, C] and what the head received [B, D]."""

    x: Tensor
    y: Tensor
    z: Tensor
    h: Tensor


@dataclass(frozen=True)
class Reply:
    """What client k with n samples sends: its weights, and what the method shares beside them.

    loss: the mean over every sample it trained on, with all of the method's terms.
    """

    k: int
    n: int
    steps: int
    loss: float
    w: Weights
    shared: Tree


@dataclass(frozen=True)
class Snapshot:
    """What must agree after a round. slices: part -> leaves; private: client -> part -> leaves; answers:
    client -> logits.

    loss: the mean of the clients' training losses, NaN with nobody there.
    """

    weights: Weights
    slices: dict[str, Tree]
    private: dict[int, Tree]
    answers: dict[int, Tensor]
    loss: float
