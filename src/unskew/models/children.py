"""The layers of a model as they stand in it."""

# pyright: reportPrivateUsage=false
# torch has no public list of a module's children that holds a child twice.

from __future__ import annotations

from torch import nn


def children(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The direct children by name, in order, each as often as it stands there.

    `named_children` names a layer once, and a Sequential may use one activation several times.
    """
    return [(name, child) for name, child in module._modules.items() if child is not None]
