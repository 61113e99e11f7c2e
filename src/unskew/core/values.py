"""The values that hooks receive and return: Share, Noise, Batch, Out.

Letters: B batch, C classes, D features, H x W pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from unskew.core.stated import check_noise, check_share
from unskew.errors import UsageError

Kind = Literal["weights", "sums", "statistics", "features", "labels", "inputs"]
"""What a Share discloses, roughly from least to most: weights or their changes; sums or means of features; counts and other
figures of a class or a client; features of samples; labels of samples; inputs, also averaged ones."""

Normal: TypeAlias = Callable[[tuple[int, ...], str], Tensor]
"""(shape, purpose) -> standard normal numbers, float64."""

GRID = 2.0**-20
"""The distance between two numbers that a noisy sum may have, in deviations of its noise."""


def noisy(total: Tensor, deviation: float, drawn: Tensor) -> Tensor:
    """total + deviation * drawn in float64, rounded to a multiple of GRID * deviation. drawn: standard normal, float64.

    The multiples are the same for every total, so that no result excludes a total by its last bits, as sums of floating-point
    numbers do (Mironov, CCS 2012). Whatever is computed from the result, in any precision, excludes none either.
    """
    if not deviation:
        return total.double()
    step = GRID * deviation
    return ((total.double() + deviation * drawn.to(total.device)) / step).round() * step


Keys: TypeAlias = Callable[[str], torch.Generator]
"""(purpose) -> a generator on the CPU, for one client in one round; client and server get the same one."""


@dataclass(frozen=True)
class Share:
    """The declaration of one tensor that leaves a client beside its weights. What is not declared cannot leave.

    shape: of the tensor; it may start with None, for a number of rows that differs by client. rows: the most rows.
    dtype: of the tensor. low, high: bounds on every value. norm: bound on the L2 norm of the whole tensor, if any.
    guarantee: what protects it: a proof ("dp"), a measurement ("empirical") or nothing ("none").
    reads: what the server must see: the sum over clients ("sum"), which secure aggregation can give without showing any
    client's own, or every client's own ("each").
    what: a few words for tables: "mean of each channel".
    kind: what it discloses; None, where a Part does not say, counts as "inputs".
    samples: how many samples stand behind each of its numbers: so many, or all of a class or of the client ("class",
    "client"). 1 where a Part does not say.
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
    kind: Kind | None = None
    samples: int | Literal["class", "client"] = 1

    def __post_init__(self):
        """Raises UsageError (E121) for what it cannot mean."""
        check_share(self, Kind)

    @property
    def discloses(self) -> Kind:
        """Its kind; the strictest where its Part does not say."""
        return self.kind or "inputs"

    @property
    def behind(self) -> str:
        """In words, how many samples stand behind each of its numbers."""
        words = {"class": "all of a class", "client": "all"}
        return words[self.samples] if isinstance(self.samples, str) else str(self.samples)

    def fewest(self, n: int, counts_C: np.ndarray[Any, Any]) -> int:
        """The fewest samples that stand behind one of its numbers at a client with n samples, so many of each class (of
        masks: pixels); 0 at a client without any.

        Where a client deals its samples to any number of rows, the last row may have fewer than the others.
        """
        if not n:
            return 0
        if isinstance(self.samples, str):
            return n if self.samples == "client" else min(n, int(counts_C[counts_C > 0].min()))
        last = n % self.samples if self.shape[:1] == (None,) else 0
        return last or min(self.samples, n)

    @property
    def max_bytes(self) -> int:
        """Bytes of the largest tensor that fits this declaration."""
        sizes = [self.rows if s is None else s for s in self.shape]
        return math.prod(sizes) * torch.empty((), dtype=self.dtype).element_size()


@dataclass(frozen=True)
class Noise:
    """Random numbers that a client's hooks ask for. The engine draws them anew at every step, keyed by client and round.

    law: "uniform" on [0, 1); "normal", standard; "beta" with args (a, b); "integers" 0..n-1 with args (n,), drawn
    independently; "cycle" with args (n,): 0..n-1 in shuffled order, again and again, so that a pass meets each equally
    often (drawn independently where n is smaller than the batch).
    shape: of one draw. per_sample: one draw for every sample, a tensor [B, *shape]; else one for the step, [*shape].
    """

    law: Literal["uniform", "normal", "beta", "integers", "cycle"]
    args: tuple[float, ...] = ()
    shape: tuple[int, ...] = ()
    per_sample: bool = True

    def __post_init__(self):
        """Raises UsageError (E121) for what it cannot mean."""
        check_noise(self)


@dataclass(frozen=True)
class Batch:
    """The samples of one step.

    x: inputs [B, *shape]. y: class distributions [B, C], or [B, C, H, W] where samples have masks; of a regression the
    numbers to learn, [B, 1].
    weight: [B], 1 for a sample and 0 for a row that only pads the batch.
    along: a direction in the space of x, [B, *shape], for a directional derivative (FedMix); it scales as x does.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    along: Tensor | None = None

    def mean(self, values_B: Tensor) -> Tensor:
        """The mean over the samples of this batch; padding does not count, even if it is infinite.

        Raises UsageError (E127) unless there is one number for each sample: others would be spread over samples in silence.
        """
        if values_B.shape != self.weight.shape:
            given = " x ".join(map(str, values_B.shape)) or "a single number"
            raise UsageError(
                "E127",
                f"batch.mean takes one number for each of the {len(self.weight)} samples; a hook gave it {given}.",
            )
        return torch.where(self.weight > 0, values_B * self.weight, 0.0).sum() / self.weight.sum().clamp(min=1)

    def replace(self, **changes: Any) -> Batch:
        """The same batch with other values of the fields named."""
        return replace(self, **changes)

    def scaled(self, shift: Tensor, scale: Tensor) -> Batch:
        """The batch with inputs (x - shift) / scale; a direction is only divided."""
        return replace(
            self,
            x=(self.x - shift) / scale,
            along=None if self.along is None else (self.along / scale).expand_as(self.x),
        )


@dataclass(frozen=True)
class Out:
    """What one forward pass of a training step gives to the losses.

    logits: [B, C], or [B, C, H, W] for masks, or [B, 1] of a regression, after every Part's `logits`; raw: the same before them.
    features: [B, D], what the head received.
    own: the batch as it entered the model, before any `tap` changed its labels.
    before, after: by cut, the activation there before and after the Parts' `tap` changed it.
    """

    logits: Tensor
    raw: Tensor
    features: Tensor
    own: Batch
    before: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    after: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
