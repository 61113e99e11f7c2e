"""How large a model is, how much it computes, and what it gives at a cut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

_UPWARD = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def below(module: nn.Sequential, cut: str) -> int:
    """Parameters up to and with a block."""
    total = 0
    for name, block in module.named_children():
        total += parameters(block)
        if name == cut:
            return total
    raise KeyError(cut)


def shape_at(module: nn.Module, shape: tuple[int, ...], cut: str) -> tuple[int, ...]:
    """The shape of one sample's activation after a block."""
    found: list[torch.Size] = []
    hook = dict(module.named_children())[cut].register_forward_hook(lambda _m, _x, h: found.append(h.shape))
    try:
        with torch.no_grad(), evaluating(module):
            module(torch.zeros(2, *shape))
    finally:
        hook.remove()
    return tuple(found[0][1:])


def multiply_adds(module: nn.Module, shape: tuple[int, ...]) -> int:
    """Multiply-adds of convolutions and dense layers for one sample, forward."""
    total = 0

    def count(layer: nn.Module, x: tuple, out: torch.Tensor) -> None:
        nonlocal total
        from_each = x[0] if isinstance(layer, _UPWARD) else out  # a transposed convolution spreads every input
        total += from_each[0].numel() * layer.weight[0].numel()  # type: ignore[index, union-attr, operator]

    counted = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear, *_UPWARD)
    hooks = [m.register_forward_hook(count) for m in module.modules() if isinstance(m, counted)]
    try:
        with torch.no_grad(), evaluating(module):
            module(torch.zeros(1, *shape))
    finally:
        for hook in hooks:
            hook.remove()
    return total


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """In evaluation mode; afterwards every layer is in the mode it had, a frozen layer too."""
    modes = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for layer, mode in modes:
            layer.training = mode
