"""A copy of a model with a latent layer or a projection before its head."""

from __future__ import annotations

import copy
from collections.abc import Callable

from torch import nn

from unskew.errors import UsageError
from unskew.models.children import children
from unskew.models.heads import ends_with_head, head_of, mark


def with_latent(module: nn.Module, width: int) -> nn.Module:
    """A copy with blocks `base` (flatten) and `latent` before the head: sigmoid(Linear(D, width)), which the head reads.

    A model that already has these two blocks is returned itself. Raises UsageError (E105) unless the model is an
    nn.Sequential that ends with an nn.Linear.
    """
    names = [n for n, _ in children(module)]
    if "latent" in names and "base" in names:
        return module
    if not isinstance(module, nn.Sequential) or not isinstance(module[-1], nn.Linear):
        raise UsageError("E105", "a latent layer needs an nn.Sequential of named blocks that ends with one nn.Linear.")
    module = copy.deepcopy(module)
    head = module._modules.pop(names[-1])
    assert isinstance(head, nn.Linear)
    module.add_module("base", nn.Flatten())
    module.add_module("latent", nn.Sequential(nn.Linear(head.in_features, width), nn.Sigmoid()))
    module.add_module(names[-1], nn.Linear(width, head.out_features))
    return module


def with_projection(module: nn.Module, width: int) -> nn.Module:
    """A copy with Linear(D, D)-ReLU-Linear(D, width) before the head, which then reads `width` features.

    Raises UsageError (E105) if the head is not a single nn.Linear.
    """

    def layers(D: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, width))

    return with_head(module, layers, lambda old: nn.Linear(width, old.out_features, bias=old.bias is not None))


def with_head(
    module: nn.Module, layers: Callable[[int], nn.Sequential], head_like: Callable[[nn.Linear], nn.Linear]
) -> nn.Module:
    """A copy with these layers, which read D features, between body and head, and the head that `head_like` makes of the old.

    Raises UsageError (E105) if the head is not a single nn.Linear.
    """
    module = copy.deepcopy(module)
    plain = ends_with_head(module)
    name = [n for n, _ in children(module)][-1] if plain else head_of(module)
    head = module.get_submodule(name)
    if not isinstance(head, nn.Linear):
        raise UsageError("E105", f"the model's head '{name}' is not one nn.Linear, so nothing can be put before it.")
    projection, new = layers(head.in_features), head_like(head)
    if plain:
        module._modules.pop(name)
        module.add_module("projection", projection)
        module.add_module(name, new)
    else:
        parent, _, child = name.rpartition(".")
        setattr(module.get_submodule(parent), child, nn.Sequential(*projection, new))
        mark(module, f"{name}.{len(projection)}")
    return module
