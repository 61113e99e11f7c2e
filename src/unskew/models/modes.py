"""How a module's layers run: in evaluation mode for as long as it is needed, and not in place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode; afterwards every layer has the mode it had, also one that was frozen."""
    modes = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for layer, mode in modes:
            layer.training = mode


def nothing_in_place(module: nn.Module) -> nn.Module:
    """The module itself, its layers told to leave their inputs as they are (`nn.ReLU(inplace=True)`), which others read."""
    for layer in module.modules():
        if getattr(layer, "inplace", False) is True:
            layer.inplace = False  # type: ignore[assignment]
    return module
