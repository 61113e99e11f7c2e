"""The parameters and multiply-adds of a model, and the shape of its activation at a cut."""

from __future__ import annotations

import torch
from torch import nn

from unskew.core.modules import children, evaluation_mode

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_COUNTED = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear, *_TRANSPOSED)


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


def multiply_adds(module: nn.Module, shape: tuple[int, ...]) -> int:
    """Multiply-adds of the convolutions and dense layers in one forward pass of one sample."""
    total = 0

    def count(layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        nonlocal total
        # a transposed convolution multiplies its weights with every input instead of output
        each = inputs[0] if isinstance(layer, _TRANSPOSED) else output
        weight = layer.weight
        assert isinstance(weight, torch.Tensor)
        total += each[0].numel() * weight[0].numel()

    hooks = [layer.register_forward_hook(count) for layer in module.modules() if isinstance(layer, _COUNTED)]
    try:
        with torch.no_grad(), evaluation_mode(module):
            module(torch.zeros(1, *shape))
    finally:
        for hook in hooks:
            hook.remove()
    return total
