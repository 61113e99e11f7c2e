"""Layers whose weights are frozen and multiplied by bits that can be learnt: 1 where a real number is at least 0.

The bit's derivative by its number is taken to be that of the sigmoid.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

MASK, FIXED = ".fedmask", ".fixed"
"""How the names of a layer's real-valued mask and of its frozen weights end."""


class _Masked:
    """`weight` is computed wherever it is read, also by code that does without the layer's `forward`."""

    fixed: Tensor
    fedmask: Tensor

    @property
    def weight(self) -> Tensor:
        return self.fixed * binary(self.fedmask)


class MaskedLinear(_Masked, nn.Linear): ...  # type: ignore[misc]


class MaskedConv1d(_Masked, nn.Conv1d): ...  # type: ignore[misc]


class MaskedConv2d(_Masked, nn.Conv2d): ...  # type: ignore[misc]


class MaskedConv3d(_Masked, nn.Conv3d): ...  # type: ignore[misc]


MASKED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: MaskedLinear,
    nn.Conv1d: MaskedConv1d,
    nn.Conv2d: MaskedConv2d,
    nn.Conv3d: MaskedConv3d,
}


def with_masks(module: nn.Module, start: float, gain: float) -> nn.Module:
    """A copy whose linear layers and convolutions have masks of `start` everywhere, over `gain` times the weights they have.

    A model that brings trained weights of its own (it says so in `fresh`) keeps them as they are. Layers that were frozen
    get no mask, and neither do classes derived from these.
    """
    module = copy.deepcopy(module)
    gain = 1.0 if getattr(module, "fresh", None) is not None else gain
    for layer in module.modules():
        if type(layer) in MASKED and layer._parameters["weight"].requires_grad:  # type: ignore[union-attr]
            _mask(layer, start, gain)
    return module


def unmasked(module: nn.Module) -> list[str]:
    """Names of the layers that could have a mask and have none."""
    return [n for n, layer in module.named_modules() if type(layer) in MASKED]


def _mask(layer: nn.Module, start: float, gain: float) -> None:
    weight = layer._parameters.pop("weight")
    assert weight is not None
    layer.__class__ = MASKED[type(layer)]
    layer.register_parameter("fixed", nn.Parameter(gain * weight.detach(), requires_grad=False))
    layer.register_parameter("fedmask", nn.Parameter(torch.full_like(weight, start)))


def binary(mask: Tensor) -> Tensor:
    """1.0 where a number is at least 0, else 0.0; differentiated as the sigmoid."""
    soft = mask.sigmoid()
    return (mask >= 0).to(mask.dtype) + (soft - soft.detach())
