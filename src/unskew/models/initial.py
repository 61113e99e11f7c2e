"""Initial weights from a generator alone, never from torch's global one."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd


def initialise(module: nn.Module, generator: torch.Generator) -> list[str]:
    """Set every known layer by PyTorch's default rules; returns the layers it does not know, left as they are.

    A model with rules of its own has them in `module.initialise`, applied on top.
    """
    unknown = []
    for name, layer in module.named_modules():
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
