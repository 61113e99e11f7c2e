"""Further models that begin as different from the given one as another draw of its weights: what IFCA and FedEM share."""

from __future__ import annotations

import torch
from torch import Tensor

from unskew.core import key


def reordered(t: Tensor, seed: int, *what: str | int) -> Tensor:
    """A tensor with the same numbers in another order, keyed by the run's seed and by `what` it is for."""
    order = torch.randperm(t.numel(), generator=key(seed, *what))
    return t.flatten()[order.to(t.device)].reshape(t.shape)
