"""Samples with several inputs, which travel as rows of numbers, given to the module that takes them one by one.

A hook before the module's forward takes each row apart: a dictionary's inputs become keyword arguments, a tuple's positional
ones, in the shapes and types in which the data have them. The module itself, its names and its weights stay as they are.
Letters: B batch, D numbers of a row.
"""

# pyright: reportPrivateUsage=false
# A hook is taken off a copied module by its number, for which torch has no public way.

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from unskew.data.layout import Input, Layout
from unskew.errors import UsageError


class Unpacks:
    """The hook. layout: of the rows."""

    def __init__(self, layout: Layout):
        self.layout = layout

    def __call__(
        self, _module: nn.Module, args: tuple[Any, ...], _kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        (x,) = args
        values = apart(self.layout, x)
        return ((), values) if self.layout.named else (tuple(values.values()), {})


def apart(layout: Layout, x: Tensor) -> dict[str, Tensor]:
    """The inputs of rows [B, D], by name or number: [B, *shape] each. Whatever runs lanes side by side sees shapes alone."""
    return {each.name: _as_given(each, x[..., start:end]) for each, start, end in layout.places}


def _as_given(each: Input, x: Tensor) -> Tensor:
    """An input [B, numbers] in its own shape and type."""
    x = x.unflatten(-1, each.shape) if each.shape else x[..., 0]
    if each.kind == "bool":
        return x > 0.5
    return x.round().to(torch.int64) if each.kind == "int64" else x


def attach(module: nn.Module, layout: Layout | None) -> None:
    """Let the module read rows of this layout, in place of any it has read before; None: inputs as they are."""
    detach(module)
    if layout:
        module.register_forward_pre_hook(Unpacks(layout), prepend=True, with_kwargs=True)  # before hooks of the user's


def detach(module: nn.Module) -> None:
    """Undo `attach`, also on a copy."""
    for number in [n for n, hook in module._forward_pre_hooks.items() if isinstance(hook, Unpacks)]:
        del module._forward_pre_hooks[number]
        module._forward_pre_hooks_with_kwargs.pop(number, None)


def check_takes(module: nn.Module, layout: Layout) -> None:
    """Raises UsageError (E123) unless the module's forward can be called with these inputs."""
    inputs = [each.name for each in layout.inputs]
    if isinstance(module, nn.Sequential):
        raise UsageError(
            "E123",
            f"samples have several inputs ({layout}), and an nn.Sequential takes one; give a module whose forward takes each.",
        )
    args, kwargs = ([], dict.fromkeys(inputs)) if layout.named else (inputs, {})
    taken = signature(module.forward)
    try:
        taken.bind(*args, **kwargs)
    except TypeError as error:
        how = f"keywords {', '.join(inputs)}" if layout.named else f"{len(inputs)} positional arguments"
        text = f"the model's forward takes {taken}, and the inputs of samples come as {how}"
        raise UsageError("E123", f"{text}: {error}.") from None
