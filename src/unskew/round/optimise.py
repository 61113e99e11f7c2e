"""Local optimisers on stacked weights, and the learning rate over a client's local steps of one round.

The optimisers have the arithmetic of torch.optim's SGD, Adam and AdamW; one more is Adam made anew at every
step. They are made afresh for every local update, so no momentum crosses rounds. The learning rate is a
number, or on a GPU a tensor, from which recorded steps read that of their round. Within a round it has a
factor:

    warm-up    (s + 1) / W                              for the first W = round(warmup S) of the S steps, s =
    0, 1, ... constant   1                                        after them
    cosine     (1 + cos(pi (s - W) / (S - W))) / 2      (Loshchilov and Hutter, ICLR 2017, without restarts)

Every optimiser here moves weights by its learning rate times something else, so a factor on the rate is one
on the move.
Letters: G lanes, S steps.
"""

# pyright: reportPrivateImportUsage=false
# torch's own optimisers are made of its _foreach functions, which have no public names.

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


class Optimiser(Protocol):
    """state: groups of tensors, each group as long as the weights; the caller takes the lanes that are still
    active, and puts back what belongs to a weight that rests at a step."""

    state: list[list[Tensor]]

    def start(self, w: list[Tensor], lanes: Tensor | None = None) -> None:
        """Make the state for these weights. lanes: one number a lane, of any value, if weights may rest at
        some steps, so that each has to count its own; None if all move at every step."""
        ...

    def step(self, w: list[Tensor], g: list[Tensor], state: list[list[Tensor]], local_G: Tensor) -> None:
        """Change weights and state in place. g: gradients. local_G: how many steps each lane has taken
        before."""
        ...


@dataclass
class SGD:
    """g <- g + weight_decay w;  v <- momentum v + g;  w <- w - lr v."""

    lr: float | Tensor
    momentum: float = 0.0
    weight_decay: float = 0.0
    state: list[list[Tensor]] = field(default_factory=list)

    def start(self, w: list[Tensor], lanes: Tensor | None = None) -> None:
        self.state = [[torch.zeros_like(t) for t in w]] if self.momentum else []

    def step(self, w: list[Tensor], g: list[Tensor], state: list[list[Tensor]], local_G: Tensor) -> None:
        g = _add_decay(w, g, self.weight_decay)
        if self.momentum:
            torch._foreach_mul_(state[0], self.momentum)
            torch._foreach_add_(state[0], g)
            g = state[0]
        if isinstance(self.lr, Tensor):
            torch._foreach_sub_(w, torch._foreach_mul(g, self.lr))
        else:
            torch._foreach_add_(w, g, alpha=-self.lr)


@dataclass
class Adam:
    """Kingma and Ba, ICLR 2015, with torch.optim.Adam's defaults; weight decay is added to the gradient."""

    lr: float | Tensor
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    state: list[list[Tensor]] = field(default_factory=list)

    def start(self, w: list[Tensor], lanes: Tensor | None = None) -> None:
        counts = [] if lanes is None else [[torch.zeros_like(lanes, dtype=torch.float64) for _ in w]]
        self.state = [[torch.zeros_like(t) for t in w] for _ in range(2)] + counts

    def step(self, w: list[Tensor], g: list[Tensor], state: list[list[Tensor]], local_G: Tensor) -> None:
        m, v, *counts = state
        g = _add_decay(w, g, self.weight_decay)
        torch._foreach_lerp_(m, g, 1 - self.betas[0])
        torch._foreach_mul_(v, self.betas[1])
        torch._foreach_addcmul_(v, g, g, value=1 - self.betas[1])
        if counts:
            torch._foreach_add_(counts[0], 1.0)
        # each lane's bias is corrected by its own step number, and each weight's where some rest
        rates_G, roots_G = zip(*map(self._corrections, counts[0] if counts else [local_G.double() + 1]))
        denominator = torch._foreach_sqrt(v)
        torch._foreach_div_(denominator, [per_lane(root_G, t) for root_G, t in zip(cycle(roots_G), v)])
        torch._foreach_add_(denominator, self.eps)
        update = torch._foreach_div(m, denominator)
        torch._foreach_mul_(update, [per_lane(rate_G, t) for rate_G, t in zip(cycle(rates_G), m)])
        torch._foreach_add_(w, update)

    def _corrections(self, taken_G: Tensor) -> tuple[Tensor, Tensor]:
        """(minus the rate over the first average's bias, the root of the second's) after so many steps."""
        return -self.lr / (1 - self.betas[0] ** taken_G), (1 - self.betas[1] ** taken_G).sqrt()


@dataclass
class AdamW(Adam):
    """Loshchilov and Hutter, ICLR 2019, with torch.optim.AdamW's other defaults: w <- w - lr weight_decay w
    before each step."""

    def step(self, w: list[Tensor], g: list[Tensor], state: list[list[Tensor]], local_G: Tensor) -> None:
        if self.weight_decay:
            torch._foreach_mul_(w, 1 - self.lr * self.weight_decay)
        Adam(self.lr, 0.0, self.betas, self.eps).step(w, g, state, local_G)


@dataclass
class Sign:
    """w <- w - lr g / (|g| + eps): Adam made anew at every step, as in the public code of FLea and of its
    baselines."""

    lr: float | Tensor
    weight_decay: float = 0.0
    eps: float = 1e-8
    state: list[list[Tensor]] = field(default_factory=list)

    def start(self, w: list[Tensor], lanes: Tensor | None = None) -> None:
        self.state = []

    def step(self, w: list[Tensor], g: list[Tensor], state: list[list[Tensor]], local_G: Tensor) -> None:
        g = _add_decay(w, g, self.weight_decay)
        size = torch._foreach_abs(g)
        torch._foreach_add_(size, self.eps)
        if isinstance(self.lr, Tensor):
            torch._foreach_sub_(w, torch._foreach_mul(torch._foreach_div(g, size), self.lr))
        else:
            torch._foreach_addcdiv_(w, g, size, value=-self.lr)


def optimiser(name: str, lr: float | Tensor, momentum: float, weight_decay: float) -> Optimiser:
    """The optimiser of this name: "sgd", "adam", "adamw" or "sign". Only SGD has momentum."""
    if name == "sgd":
        return SGD(lr, momentum, weight_decay)
    return {"adam": Adam, "adamw": AdamW, "sign": Sign}[name](lr, weight_decay)


def _add_decay(w: list[Tensor], g: list[Tensor], weight_decay: float) -> list[Tensor]:
    """g + weight_decay w."""
    return list(torch._foreach_add(g, w, alpha=weight_decay)) if weight_decay else g


def per_lane(values_G: Tensor, like: Tensor) -> Tensor:
    """[G, 1, ...] with as many axes as `like`, which has none where it is a number and stands without an axis
    of lanes."""
    shape = (-1, *[1] * (like.dim() - 1)) if like.dim() else ()
    return values_G.to(like.dtype).reshape(shape)


@dataclass(frozen=True)
class RateSchedule:
    """falls: whether the rate falls by a cosine after the warm-up. warmup: the share of the steps that it
    takes."""

    falls: bool = False
    warmup: float = 0.0

    @property
    def is_constant(self) -> bool:
        return not self.falls and not self.warmup

    def at(self, local_G: Tensor, steps_G: Tensor) -> Tensor:
        """The factor of each lane's next step, float64 [G]. local_G: how many it has taken; steps_G: how many
        it takes."""
        s, S = local_G.double(), steps_G.double()
        W = (self.warmup * S).round()
        fall = (
            (1 + torch.cos(math.pi * (s - W) / (S - W).clamp(min=1))) / 2
            if self.falls
            else torch.ones_like(s)
        )
        return torch.where(s < W, (s + 1) / W.clamp(min=1), fall)

    def slow(self, w: Sequence[Tensor], before: Sequence[Tensor], local_G: Tensor, steps_G: Tensor) -> None:
        """Shorten in place the move of each lane from the weights `before` to w."""
        factor_G = self.at(local_G, steps_G)
        for t, old in zip(w, before):
            t.copy_(torch.lerp(old, t, per_lane(factor_G, t)))

    def pull(self, steps: int, rho: float) -> float:
        """The sum of the coefficients with which the gradients of so many steps enter w_t - w_S, in units of
        the rate.

        rho: the momentum of SGD; 0 without. Gradient j enters with the factors of step j and all later ones,
        rho^(s - j) f_s.
        """
        local = torch.arange(steps)
        factors = self.at(local, torch.full_like(local, steps)).numpy()
        return float((factors * (1 - rho ** np.arange(1, steps + 1)) / (1 - rho)).sum())
