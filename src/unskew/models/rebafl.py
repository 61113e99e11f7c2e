"""The two CNNs of ReBaFL (Xu et al., arXiv 2303.06314, public code).

Max-pooling stands before the activation: both are monotone, so values and gradients are the same, and the activation
then works on a quarter of the numbers.
"""

from __future__ import annotations

from torch import nn

from unskew.models.blocks import Blocks, need, seq


def rebafl_fmnist(shape: tuple[int, ...], classes: int) -> Blocks:
    """conv5x5 1->16, pool, conv5x5 16->32, pool, FC 800->128, FC 128->10; LeakyReLU."""
    need("rebafl_fmnist", shape, shape == (shape[0], 28, 28), "[channels, 28, 28]")
    return Blocks(
        "conv1",
        True,
        conv1=seq(nn.Conv2d(shape[0], 16, 5), nn.MaxPool2d(2), nn.LeakyReLU()),
        conv2=seq(nn.Conv2d(16, 32, 5, padding=1), nn.MaxPool2d(2), nn.LeakyReLU()),
        fc=seq(nn.Flatten(), nn.Linear(800, 128), nn.LeakyReLU()),
        head=nn.Linear(128, classes),
    )


lenet = rebafl_fmnist


def rebafl_cifar(shape: tuple[int, ...], classes: int, head_bias: bool = True) -> Blocks:
    """conv5x5 3->16, conv5x5 16->32, conv3x3 32->64, each pooled; FC 576->128 without activation, FC 128->10."""
    need("rebafl_cifar", shape, shape == (shape[0], 32, 32), "[channels, 32, 32]")
    return Blocks(
        "conv1",
        True,
        conv1=seq(nn.Conv2d(shape[0], 16, 5), nn.MaxPool2d(2), nn.LeakyReLU()),
        conv2=seq(nn.Conv2d(16, 32, 5, padding=1), nn.MaxPool2d(2), nn.LeakyReLU()),
        conv3=seq(nn.Conv2d(32, 64, 3, padding=1), nn.MaxPool2d(2), nn.LeakyReLU()),
        fc=seq(nn.Flatten(), nn.Linear(576, 128)),
        head=nn.Linear(128, classes, bias=head_bias),
    )
