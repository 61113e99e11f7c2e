"""FLea's network for log-mel spectrograms, AudioNet (Xia et al., KDD 2024, public code)."""

from __future__ import annotations

import torch
from torch import nn

from unskew.models.blocks import Blocks, is_image, require, seq


def _conv(i: int, o: int, kernel: int) -> nn.Sequential:
    return seq(nn.Conv2d(i, o, kernel, 2, kernel // 2), nn.ReLU(), nn.BatchNorm2d(o))


def _initialise(module: nn.Module, generator: torch.Generator) -> None:
    """Kaiming with slope 0.1 and no bias, as the public code does for convolutions."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, a=0.1, generator=generator)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]


def audionet(shape: tuple[int, ...], classes: int) -> Blocks:
    """Four strided convolutions (8, 16, 32, 64 channels; conv, ReLU, BN), global average, head."""
    require("audionet", shape, is_image(shape, 16), "[channels, mels, frames] of at least 16x16")
    module = Blocks(
        "conv2",
        False,
        conv1=_conv(shape[0], 8, 5),
        conv2=_conv(8, 16, 3),
        conv3=_conv(16, 32, 3),
        conv4=_conv(32, 64, 3),
        pool=seq(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        head=nn.Linear(64, classes),
    )
    module.initialise = _initialise
    return module
