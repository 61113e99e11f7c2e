"""The random numbers a Part asked for, drawn for one client from its own key."""

from __future__ import annotations

import numpy as np
import torch
from scipy.special import betaincinv
from torch import Tensor

from unskew.core.keys import key
from unskew.core.values import Noise


def draw(noise: Noise, steps: int, batch: int, *what: object) -> Tensor:
    """[steps, B, *shape] if per sample, else [steps, *shape]."""
    generator = key(*what)
    shape = (steps, batch, *noise.shape) if noise.per_sample else (steps, *noise.shape)
    if noise.law == "normal":
        return torch.randn(shape, generator=generator)
    if noise.law == "uniform":
        return torch.rand(shape, generator=generator)
    if noise.law == "integers":
        return torch.randint(int(noise.args[0]), shape, generator=generator)
    if noise.law == "beta":
        u = torch.rand(shape, generator=generator, dtype=torch.float64).numpy()
        return torch.from_numpy(betaincinv(*noise.args, u).astype(np.float32))
    return _cycle(int(noise.args[0]), steps, batch, shape, generator)


def _cycle(high: int, steps: int, batch: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """0..high-1 in shuffled order, again and again, so that all are used equally often."""
    if high < batch:
        return torch.randint(high, shape, generator=generator)
    rounds = -(-steps * batch // high)
    order = torch.cat([torch.randperm(high, generator=generator) for _ in range(rounds)])
    return order[: steps * batch].reshape(steps, batch)
