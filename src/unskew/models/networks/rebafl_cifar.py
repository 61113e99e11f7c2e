"""ReBaFL's CNN for 32x32 images (Xu et al., arXiv 2303.06314, public code)."""

from __future__ import annotations

from typing import Annotated

from torch import nn

from unskew.models.blocks import Blocks, require, seq


def rebafl_cifar(
    shape: tuple[int, ...],
    classes: int,
    head_bias: Annotated[bool, "whether the head adds a bias"] = True,
) -> Blocks:
    """conv5x5 3->16, conv5x5 16->32, conv3x3 32->64, each pooled; FC 576->128 without activation, FC
    128->10."""
    require("rebafl_cifar", shape, shape == (shape[0], 32, 32), "[channels, 32, 32]")
    return Blocks(
        "conv1",
        True,
        conv1=seq(nn.Conv2d(shape[0], 16, 5), nn.MaxPool2d(2), nn.LeakyReLU()),
        conv2=seq(nn.Conv2d(16, 32, 5, padding=1), nn.MaxPool2d(2), nn.LeakyReLU()),
        conv3=seq(nn.Conv2d(32, 64, 3, padding=1), nn.MaxPool2d(2), nn.LeakyReLU()),
        fc=seq(nn.Flatten(), nn.Linear(576, 128)),
        head=nn.Linear(128, classes, bias=head_bias),
    )
