"""The scaling of inputs as one pair of numbers for each channel, whichever settings and Parts it comes from.

A model that is handed on carries these two rows instead of what they were made from: FedRDN's table holds the statistics of
every site, and its global model needs their mean alone.

Letters: C channels, or columns of a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unskew.errors import UsageError

EXACT = 1e-9
"""How far double precision may be from a straight line, relative to the numbers on it."""


@dataclass(frozen=True)
class Constants:
    """Inputs become (x / divided_by - mean) / std, channel by channel.

    divided_by: the largest number of the type of the samples. mean, std: float64 [C].
    """

    divided_by: float
    mean: Tensor
    std: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """Samples [N, C, ...], as they were given for training, as the model receives them: float32."""
        row = (1, -1, *[1] * (x.dim() - 2))
        mean, std = (values.to(x.device, torch.float32).reshape(row) for values in (self.mean, self.std))
        return (x.to(torch.float32) / self.divided_by - mean) / std


def constants_of(prepare: Callable[[Tensor], Tensor], shape: tuple[int, ...], divided_by: float) -> Constants:
    """The constants of a function of samples [1, *shape] in natural units.

    Raises UsageError (E160) for a function that does anything but shift and scale each channel.
    """
    nothing, one = (torch.full((1, *shape), value, dtype=torch.float64) for value in (0.0, 1.0))
    shift, scale = prepare(nothing), prepare(one) - prepare(nothing)
    sample = torch.linspace(-3, 3, math.prod(shape), dtype=torch.float64).reshape(1, *shape)
    expected = scale * sample + shift
    straight = torch.allclose(prepare(sample), expected, rtol=EXACT, atol=EXACT)
    shift_CP, scale_CP = shift.reshape(shape[0], -1), scale.reshape(shape[0], -1)
    alike = bool((shift_CP == shift_CP[:, :1]).all() and (scale_CP == scale_CP[:, :1]).all())
    if not straight or not alike or not bool((scale_CP[:, 0] != 0).all()):
        text = "this method does more to its inputs than to shift and scale each channel, which no export holds"
        raise UsageError("E160", f"{text}; predict with unskew (unskew.load, unskew predict).")
    return Constants(divided_by, -shift_CP[:, 0] / scale_CP[:, 0], 1 / scale_CP[:, 0])
