"""How large a model is and how much it computes."""

from __future__ import annotations

import torch
from torch import nn


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


def multiply_adds(module: nn.Module, shape: tuple[int, ...]) -> int:
    """Multiply-adds of convolutions and dense layers for one sample, forward."""
    total = 0

    def count(layer: nn.Module, _: tuple, out: torch.Tensor) -> None:
        nonlocal total
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            total += out[0].numel() * layer.weight[0].numel()

    hooks = [m.register_forward_hook(count) for m in module.modules()]
    was = module.training
    try:
        with torch.no_grad():
            module.eval()(torch.zeros(1, *shape))
    finally:
        module.train(was)
        for hook in hooks:
            hook.remove()
    return total
