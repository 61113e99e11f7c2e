"""A rectifier's answer, for whoever pools it: the largest number of a window is then rectified instead of all."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Rectified:
    """A rectifier's answer that nothing has used yet.

    No rectifier falls anywhere, so the largest of rectified numbers is the largest number, rectified. The maxima are fewer,
    hence it costs less to rectify them, above all backwards. Values and the gradients of `relu` and `relu6` are equal to the
    bit; those of a leaky one are so where windows neither overlap nor have two largest numbers.
    """

    value: weakref.ref[Tensor]
    of: Tensor
    again: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Rectifier:
    """run: the function of x and of whether it works in place. rises: whether it falls nowhere."""

    run: Callable[..., Tensor]
    rises: bool = True


Call = tuple[Tensor, Rectifier, bool]
"""What is rectified, by what, and whether in place."""


def _plain(run: Callable[..., Tensor]) -> Callable[..., Call]:
    def named(x: Tensor, inplace: bool = False) -> Call:
        return x, Rectifier(run), inplace

    return named


def _hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Call:
    return x, Rectifier(partial(F.hardtanh, min_val=min_val, max_val=max_val)), inplace  # nn.ReLU6 is one, too


def _leaky_relu(x: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Call:
    return x, Rectifier(partial(F.leaky_relu, negative_slope=negative_slope), negative_slope >= 0), inplace


RECTIFIERS: dict[Any, Callable[..., Call]] = {
    F.relu: _plain(F.relu),
    torch.relu: _plain(F.relu),
    Tensor.relu: _plain(F.relu),
    F.relu6: _plain(F.relu6),
    F.hardtanh: _hardtanh,
    F.leaky_relu: _leaky_relu,
}
"""By what of torch's is called: what is to be rectified, by what, and whether in place."""
