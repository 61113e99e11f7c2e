"""Local optimisers on stacked weights: the arithmetic of torch.optim's SGD and Adam, or signs; one lane or many.

Made afresh for every local update: no momentum crosses rounds. Letters: G lanes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor


@dataclass
class SGD:
    """g <- g + weight_decay w;  v <- momentum v + g;  w <- w - lr v."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    state: list[list[Tensor]] = field(default_factory=list)

    def start(self, w: list[Tensor]) -> None:
        self.state = [[torch.zeros_like(t) for t in w]] if self.momentum else []

    def step(self, w: list[Tensor], g: list[Tensor], state: list[list[Tensor]], local_G: np.ndarray) -> None:
        if self.weight_decay:
            g = torch._foreach_add(g, w, alpha=self.weight_decay)
        if self.momentum:
            torch._foreach_mul_(state[0], self.momentum)
            torch._foreach_add_(state[0], g)
            g = state[0]
        torch._foreach_add_(w, g, alpha=-self.lr)


@dataclass
class Adam:
    """Kingma & Ba, ICLR 2015, with torch.optim.Adam's defaults; weight decay is added to the gradient."""

    lr: float
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    state: list[list[Tensor]] = field(default_factory=list)

    def start(self, w: list[Tensor]) -> None:
        self.state = [[torch.zeros_like(t) for t in w] for _ in range(2)]

    def step(self, w: list[Tensor], g: list[Tensor], state: list[list[Tensor]], local_G: np.ndarray) -> None:
        m, v = state
        if self.weight_decay:
            g = torch._foreach_add(g, w, alpha=self.weight_decay)
        torch._foreach_lerp_(m, g, 1 - self.betas[0])
        torch._foreach_mul_(v, self.betas[1])
        torch._foreach_addcmul_(v, g, g, value=1 - self.betas[1])
        # a lane's own step number corrects its bias; the numbers are known on the host
        first_G = -self.lr / (1 - self.betas[0] ** (local_G + 1.0))
        second_G = np.sqrt(1 - self.betas[1] ** (local_G + 1.0))
        down = torch._foreach_sqrt(v)
        torch._foreach_div_(down, [_per_lane(second_G, t) for t in v])
        torch._foreach_add_(down, self.eps)
        update = torch._foreach_div(m, down)
        torch._foreach_mul_(update, [_per_lane(first_G, t) for t in m])
        torch._foreach_add_(w, update)


@dataclass
class Sign:
    """w <- w - lr g / (|g| + eps): Adam made anew at every step, as the public code of FLea and of its baselines does."""

    lr: float
    weight_decay: float = 0.0
    eps: float = 1e-8
    state: tuple[list[Tensor], ...] = ()

    def start(self, w: list[Tensor]) -> None:
        pass

    def step(self, w: list[Tensor], g: list[Tensor], state: list[list[Tensor]], local_G: np.ndarray) -> None:
        if self.weight_decay:
            g = torch._foreach_add(g, w, alpha=self.weight_decay)
        size = torch._foreach_abs(g)
        torch._foreach_add_(size, self.eps)
        torch._foreach_addcdiv_(w, g, size, value=-self.lr)


def _per_lane(values_G: np.ndarray, like: Tensor) -> Tensor:
    return torch.as_tensor(values_G, dtype=like.dtype, device=like.device).reshape(-1, *[1] * (like.dim() - 1))


def make(name: str, lr: float, momentum: float, weight_decay: float) -> SGD | Adam | Sign:
    if name == "sgd":
        return SGD(lr, momentum, weight_decay)
    return Adam(lr, weight_decay) if name == "adam" else Sign(lr, weight_decay)
