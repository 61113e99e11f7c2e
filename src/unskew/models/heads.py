"""Which layer of a user's module is its head: the one whose outputs are the logits, wherever it stands among the others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unskew.errors import UsageError
from unskew.models.children import children
from unskew.models.modes import evaluating

MARK = "_unskew_head"
"""The attribute of a module that names its head, where it is not the layer that was made last."""
_WEIGHED = (nn.Linear, nn.modules.conv._ConvNd)  # pyright: ignore[reportPrivateUsage]


def head_of(module: nn.Module) -> str:
    """The name of the head: the one that was found, else the last dense layer; of a model that has none because it answers for
    pixels, the last convolution. Raises UsageError (E105) if it has neither."""
    if named := getattr(module, MARK, ""):
        return named
    weighed = [(n, m) for n, m in module.named_modules() if isinstance(m, _WEIGHED)]
    dense = [n for n, m in weighed if isinstance(m, nn.Linear)]
    if not weighed:
        raise UsageError("E105", "the model has no nn.Linear to be its head; end it with one.")
    return dense[-1] if dense else weighed[-1][0]


def ends_with_head(module: nn.Module) -> bool:
    """Whether a module is a Sequential whose last block is its head: a matrix of weights is in it, which normalisation and
    other scales of the outputs do not have, or no other layer can be the head."""
    if not isinstance(module, nn.Sequential):
        return False
    blocks = [block for _, block in children(module)]
    if len({*map(id, blocks)}) < len(blocks) or not any(isinstance(layer, _WEIGHED) for layer in module.modules()):
        return True
    return any(p.dim() > 1 for p in blocks[-1].parameters())


def mark(module: nn.Module, name: str) -> None:
    """Say which layer is the head."""
    setattr(module, MARK, name)


def find(module: nn.Module, x: Tensor, classes: int) -> None:
    """Mark the head, unless it is the layer that stands for one anyway.

    It is the last layer called whose outputs for samples x are the logits; where the model does something with them (softmax, a
    mean over pixels), the last one called that gives a number for each class.
    """
    calls: list[tuple[str, Any]] = []
    handles: list[Any] = []
    for name, layer in module.named_modules():
        if isinstance(layer, _WEIGHED):
            handles.append(layer.register_forward_hook(lambda _l, _x, out, name=name: calls.append((name, out))))
    try:
        with torch.no_grad(), evaluating(module):
            z = module(x)
    finally:
        for handle in handles:
            handle.remove()
    layers = dict(module.named_modules())
    fit = [n for n, _ in calls if _outputs(layers[n]) == classes]
    exact = [n for n, out in calls if out.shape == z.shape and torch.equal(out, z)]
    among = exact or fit
    if among and head_of(module) not in among:
        mark(module, among[-1])


def _outputs(layer: Any) -> int:
    return layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
