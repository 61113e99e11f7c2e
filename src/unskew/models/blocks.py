"""What our models share: named blocks in sequence, the last of which is the head, and initial weights from a
given generator.

The global generator of torch is never used.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from unskew.errors import UsageError


@dataclass(frozen=True)
class Example:
    """A line of the table in docs/models.md: a model at one shape of samples.

    shape: of one sample; source: where the architecture comes from; masks: whether samples have masks.
    """

    shape: tuple[int, ...]
    classes: int
    source: str
    arguments: dict[str, Any] = field(default_factory=dict)
    masks: bool = False


class Blocks(nn.Sequential):
    """Named blocks; the block before `head` gives the feature vector that the head receives.

    cut: the block whose output methods share by default. folds: whether it pays on a CPU to train several
    clients side by side in the channels, which it does for small convolutions and dense layers. initialise:
    the model's own rule for initial weights, applied after PyTorch's, or None.

    In our blocks, pooling stands before a ReLU or LeakyReLU. Both are monotone, so values and gradients are
    the same, and the activation works on a quarter of the numbers. Nothing is computed in place, so that vmap
    can run every block.
    """

    initialise: Callable[[nn.Module, torch.Generator], None] | None = None

    def __init__(self, cut: str, folds: bool, **blocks: nn.Module):
        super().__init__(OrderedDict(blocks))
        self.cut, self.folds = cut, folds


def require(model: str, shape: tuple[int, ...], fits: bool, expected: str) -> None:
    """Raises UsageError (E122) unless samples of this shape fit the model. expected: the shapes that do, in
    words."""
    if not fits:
        raise UsageError(
            "E122",
            f"model '{model}' needs samples of {expected}, got {list(shape)}. `unskew list models` shows what"
            " fits.",
        )


def outputs(shape: tuple[int, ...], classes: int, pixels: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of what a model says of one sample: (classes, *pixels), or (tokens, classes) of labels at
    every token.

    shape: of the sample. pixels: of its label, () where it has one.
    """
    return (*pixels, classes) if pixels and len(shape) == 1 else (classes, *pixels)


def is_image(shape: tuple[int, ...], least: int) -> bool:
    """Whether a sample is [channels, height, width] with sides of at least `least` pixels."""
    return len(shape) == 3 and min(shape[1:]) >= least


def seq(*layers: nn.Module) -> nn.Sequential:
    """The layers as one block."""
    return nn.Sequential(*layers)


def initialise(module: nn.Module, generator: torch.Generator) -> list[str]:
    """Set the weights of every known layer, in place, by PyTorch's default rules.

    A model with a rule of its own has it in `module.initialise`, which is applied afterwards. One that brings
    weights names in `module.fresh` how the names of those layers begin that it has none for; only these are
    set. Returns the names of the layers with parameters that are of no known kind; these are left as they
    are.
    """
    unknown = []
    fresh = getattr(module, "fresh", None)
    for name, layer in module.named_modules():
        if fresh is not None and not name.startswith(fresh):
            continue
        if isinstance(layer, (nn.Linear, _ConvNd)):
            nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5), generator=generator)
            if layer.bias is not None:
                bound = 1 / math.sqrt(nn.init._calculate_fan_in_and_fan_out(layer.weight)[0])
                nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
        elif isinstance(layer, (_NormBase, nn.LayerNorm, nn.GroupNorm)):
            layer.reset_parameters()
        elif next(layer.parameters(recurse=False), None) is not None:
            unknown.append(name)
    if own := getattr(module, "initialise", None):
        own(module, generator)
    return unknown
