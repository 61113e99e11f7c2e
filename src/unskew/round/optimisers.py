"""Local optimisers on stacked weights.

The optimisers compute as torch.optim's SGD, Adam and AdamW; `Sign` is an Adam that is created anew at every
step. Each local update begins with a new state, so no momentum crosses rounds. The learning rate is a number,
or on a GPU a tensor, which recorded steps read.
Letters: G lanes.
"""

# pyright: reportPrivateImportUsage=false
# torch's optimisers consist of its _foreach functions, which have no public names.

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import cycle

import torch
from torch import Tensor

from unskew.round.clients import LocalTraining


@dataclass
class Optimiser:
    """An optimiser on stacked weights. state: groups of tensors, one per weight in each group.

    The caller passes the active lanes of the state, and restores those of weights that `holds` keeps
    constant.
    """

    lr: float | Tensor
    weight_decay: float = 0.0
    state: list[list[Tensor]] = field(default_factory=list)

    def start(self, w: list[Tensor], lanes: Tensor | None = None) -> None:
        """Initialise the state for these weights. lanes: a tensor [G] of any values if some weights may be
        held at some steps, so that each counts its own steps; None if all change at every step."""
        self.state = []

    def step(self, w: list[Tensor], g: list[Tensor], state: list[list[Tensor]], local_G: Tensor) -> None:
        """Change weights and state in place. g: gradients. local_G: the number of steps that each lane has
        taken before."""
        raise NotImplementedError


@dataclass
class SGD(Optimiser):
    """g <- g + weight_decay w;  v <- momentum v + g;  w <- w - lr v."""

    momentum: float = 0.0

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
class Adam(Optimiser):
    """Kingma and Ba, ICLR 2015, with torch.optim.Adam's defaults; weight decay is added to the gradient."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

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
        """(-lr / bias correction of the first moment, root of that of the second) after these steps."""
        return -self.lr / (1 - self.betas[0] ** taken_G), (1 - self.betas[1] ** taken_G).sqrt()


@dataclass
class AdamW(Adam):
    """Loshchilov and Hutter, ICLR 2019, with torch.optim.AdamW's other defaults: w <- w - lr weight_decay w
    before each step."""

    def step(self, w: list[Tensor], g: list[Tensor], state: list[list[Tensor]], local_G: Tensor) -> None:
        if self.weight_decay:
            torch._foreach_mul_(w, 1 - self.lr * self.weight_decay)
        Adam(self.lr, betas=self.betas, eps=self.eps).step(w, g, state, local_G)


@dataclass
class Sign(Optimiser):
    """w <- w - lr g / (|g| + eps): an Adam created anew at every step, as in the public code of FLea and its
    baselines."""

    eps: float = 1e-8

    def step(self, w: list[Tensor], g: list[Tensor], state: list[list[Tensor]], local_G: Tensor) -> None:
        g = _add_decay(w, g, self.weight_decay)
        size = torch._foreach_abs(g)
        torch._foreach_add_(size, self.eps)
        if isinstance(self.lr, Tensor):
            torch._foreach_sub_(w, torch._foreach_mul(torch._foreach_div(g, size), self.lr))
        else:
            torch._foreach_addcdiv_(w, g, size, value=-self.lr)


def optimiser(training: LocalTraining, lr: float, device: torch.device) -> Optimiser:
    """The clients' optimiser with this learning rate. Only SGD has momentum."""
    rate = lr if device.type == "cpu" else torch.full((), lr, device=device)
    if training.optimiser == "sgd":
        return SGD(rate, training.weight_decay, momentum=training.momentum)
    return {"adam": Adam, "adamw": AdamW, "sign": Sign}[training.optimiser](rate, training.weight_decay)


def _add_decay(w: list[Tensor], g: list[Tensor], weight_decay: float) -> list[Tensor]:
    """g + weight_decay w."""
    return list(torch._foreach_add(g, w, alpha=weight_decay)) if weight_decay else g


def per_lane(values_G: Tensor, like: Tensor) -> Tensor:
    """The values as [G, 1, ...] with as many axes as `like`; as a scalar if `like` is one, without lanes."""
    shape = (-1, *[1] * (like.dim() - 1)) if like.dim() else ()
    return values_G.to(like.dtype).reshape(shape)
