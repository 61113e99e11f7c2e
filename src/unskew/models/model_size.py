"""The number of parameters of a model, and the shape of its activation at a cut."""

from __future__ import annotations

import torch
from torch import nn

from unskew.core.modules import children, evaluation_mode


def parameters(module: nn.Module) -> int:
    """The number of parameters."""
    return sum(p.numel() for p in module.parameters())


def shape_at(module: nn.Module, shape: tuple[int, ...], cut: str) -> tuple[int, ...]:
    """The shape of one sample's activation after a block. Raises KeyError if there is no such block."""
    shapes: list[torch.Size] = []
    hook = dict(children(module))[cut].register_forward_hook(lambda _m, _x, h: shapes.append(h.shape))
    try:
        with torch.no_grad(), evaluation_mode(module):
            module(torch.zeros(2, *shape))
    finally:
        hook.remove()
    return tuple(shapes[0][1:])
