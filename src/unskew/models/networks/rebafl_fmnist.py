"""ReBaFL's LeNet-size CNN for 28x28 images (Xu et al., arXiv 2303.06314, public code)."""

from __future__ import annotations

from torch import nn

from unskew.models.blocks import Blocks, require, seq


def rebafl_fmnist(shape: tuple[int, ...], classes: int) -> Blocks:
    """conv5x5 1->16, pool, conv5x5 16->32, pool, FC 800->128, FC 128->10; LeakyReLU."""
    require("rebafl_fmnist", shape, shape == (shape[0], 28, 28), "[channels, 28, 28]")
    return Blocks(
        "conv1",
        True,
        conv1=seq(nn.Conv2d(shape[0], 16, 5), nn.MaxPool2d(2), nn.LeakyReLU()),
        conv2=seq(nn.Conv2d(16, 32, 5, padding=1), nn.MaxPool2d(2), nn.LeakyReLU()),
        fc=seq(nn.Flatten(), nn.Linear(800, 128), nn.LeakyReLU()),
        head=nn.Linear(128, classes),
    )
