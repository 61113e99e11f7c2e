"""The common structure of our models: named blocks in sequence with the head last, and seeded initial
weights.

Initial weights come from a generator argument; torch's global generator is never used.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from unskew.errors import UsageError


class Blocks(nn.Sequential):
    """Named blocks; the block before `head` outputs the feature vector.

    cut: the block with the output that methods share by default. folds: whether training several clients side
    by side in the channels pays on a CPU, as for small convolutions and dense layers. initialise: the model's
    own rule for initial weights, applied after PyTorch's, or None.

    In our blocks, pooling comes before a ReLU or LeakyReLU. Both are monotone, so values and gradients are
    unchanged, and the activation works on a quarter of the numbers. Nothing is computed in place, so that
    vmap can run every block.
    """

    initialise: Callable[[nn.Module, torch.Generator], None] | None = None

    def __init__(self, cut: str, folds: bool, **blocks: nn.Module):
        super().__init__(OrderedDict(blocks))
        self.cut, self.folds = cut, folds


def require(model: str, shape: tuple[int, ...], fits: bool, expected: str) -> None:
    """Raises UsageError (E123) unless samples of this shape fit the model. expected: the valid shapes, in
    words."""
    if not fits:
        raise UsageError(
            "E123",
            f"model '{model}' needs samples of {expected}, got {list(shape)}. `unskew list models` shows what"
            " fits.",
        )


def outputs(shape: tuple[int, ...], classes: int, pixels: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a model's output for one sample: (classes, *pixels), or (tokens, classes) for labels at
    every token.

    shape: the shape of the sample. pixels: the shape of its label, () for a single label.
    """
    return (*pixels, classes) if pixels and len(shape) == 1 else (classes, *pixels)


def is_image(shape: tuple[int, ...], least: int) -> bool:
    """Whether a sample is [channels, height, width] with sides of at least `least` pixels."""
    return len(shape) == 3 and min(shape[1:]) >= least


def seq(*layers: nn.Module) -> nn.Sequential:
    """The layers as one block."""
    return nn.Sequential(*layers)


def initialise(module: nn.Module, generator: torch.Generator) -> list[str]:
    """Initialise the weights of every known layer in place, by PyTorch's default rules.

    If the model has its own rule, `module.initialise`, it is applied afterwards. If the model brings weights,
    `module.fresh` lists the name prefixes of layers without such weights, and only these are initialised.
    Returns the names of layers with parameters of an unknown kind, which remain unchanged.
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
