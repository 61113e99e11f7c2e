"""What hooks are handed and what they declare: Share, Noise, Batch, Out.

Letters: B batch, C classes, D features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Share:
    """One tensor that leaves a client beside its weights. What is not declared cannot leave.

    `shape` may start with None: a number of rows that differs by client, at most `rows`.
    `low`, `high` bound every value, `norm` the L2 norm of the whole tensor (inf: no bound).
    `guarantee` says what protects it: "dp" (a proof), "empirical" (a measurement) or "none".
    `reads` says who must see it: "sum" (only the sum over clients, so secure aggregation is possible) or "each".
    """

    shape: tuple[int | None, ...]
    dtype: torch.dtype = torch.float32
    low: float = -math.inf
    high: float = math.inf
    norm: float | None = None
    guarantee: Literal["dp", "empirical", "none"] = "none"
    reads: Literal["sum", "each"] = "sum"
    rows: int = 0
    what: str = ""

    @property
    def max_bytes(self) -> int:
        sizes = [self.rows if s is None else s for s in self.shape]
        return math.prod(sizes) * torch.empty((), dtype=self.dtype).element_size()


@dataclass(frozen=True)
class Noise:
    """Random numbers a client's hooks want; the engine draws them, keyed by client and round.

    law: "uniform" on [0, 1), "normal", "beta" (args a, b), "integers" (args high) or "cycle" (args high): the
    numbers 0..high-1 in shuffled order, again and again; with replacement when high is below the batch.
    Drawn afresh at every step, as [B, *shape] if `per_sample`, else [*shape].
    """

    law: Literal["uniform", "normal", "beta", "integers", "cycle"]
    args: tuple[float, ...] = ()
    shape: tuple[int, ...] = ()
    per_sample: bool = True


@dataclass(frozen=True)
class Batch:
    """What a step trains on. x_B..., y_BC class distributions, weight_B 1 for a sample and 0 for padding.

    Where samples have masks, y and the logits are [B, C, H, W]: a distribution for every pixel.

    along: a direction in the space of x that some loss wants to look along (FedMix); it scales as x does.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    along: Tensor | None = None

    def mean(self, values_B: Tensor) -> Tensor:
        """The mean over the samples of this batch; padding does not count."""
        return (values_B * self.weight).sum() / self.weight.sum().clamp(min=1)

    def replace(self, **changes: Any) -> Batch:
        return replace(self, **changes)

    def scaled(self, shift: Tensor, scale: Tensor) -> Batch:
        """x <- (x - shift) / scale; a direction is only divided."""
        return replace(
            self,
            x=(self.x - shift) / scale,
            along=None if self.along is None else (self.along / scale).expand_as(self.x),
        )


@dataclass(frozen=True)
class Out:
    """What one forward pass leaves for the losses.

    logits_BC after every Part's `logits`, raw_BC before; features_BD what the head received;
    `own` the batch that entered the model, before any tap changed its labels;
    `before[cut]` and `after[cut]` the activation at a tapped cut, before and after the Parts changed it.
    """

    logits: Tensor
    raw: Tensor
    features: Tensor
    own: Batch
    before: dict[str, Tensor] = field(default_factory=dict)
    after: dict[str, Tensor] = field(default_factory=dict)
