"""A rectifier's answer, for whoever pools it: the largest number of a window is then rectified instead of all."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass

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
