"""Two convolutions, for the 8x8 digits and other small images."""

from __future__ import annotations

from typing import Annotated

from torch import nn

from unskew.models.blocks import Blocks, is_image, require, seq


def cnn_small(
    shape: tuple[int, ...],
    classes: int,
    batch_norm: Annotated[bool, "normalise by batch after each convolution, as FedBN needs it"] = False,
) -> Blocks:
    """Two 3x3 convolutions (16, 32 channels), one pooling, a dense layer of 64."""
    require("cnn_small", shape, is_image(shape, 4), "[channels, height, width] of at least 4x4")
    pooled = 32 * (shape[1] // 2) * (shape[2] // 2)
    return Blocks(
        "conv1",
        True,
        conv1=seq(nn.Conv2d(shape[0], 16, 3, padding=1), *_norm(16, batch_norm), nn.ReLU()),
        conv2=seq(nn.Conv2d(16, 32, 3, padding=1), *_norm(32, batch_norm), nn.MaxPool2d(2), nn.ReLU()),
        fc=seq(nn.Flatten(), nn.Linear(pooled, 64), nn.ReLU()),
        head=nn.Linear(64, classes),
    )


def _norm(channels: int, batch_norm: bool) -> tuple[nn.Module, ...]:
    return (nn.BatchNorm2d(channels),) if batch_norm else ()
