"""The encoders of FedDPMS (Chen & Vikalo, CVPRW 2023, public code), with a latent that the head reads.

Blocks of 3x3 convolution, PReLU and batch normalisation; `latent` is sigmoid(mu), in [0, 1]^l. The decoder and the
variance, which only training needs, are the method's own (unskew.methods.feddpms).
"""

from __future__ import annotations

from torch import nn

from unskew.models.blocks import Blocks, need, seq


def _conv(i: int, o: int, bias: bool = True) -> tuple[nn.Module, ...]:
    return nn.Conv2d(i, o, 3, padding=1, bias=bias), nn.PReLU(), nn.BatchNorm2d(o)


def vae_fmnist(shape: tuple[int, ...], classes: int, width: int = 32) -> Blocks:
    """32, 32 and 64 channels, pooled twice; 3136 numbers to a latent of 32."""
    need("vae_fmnist", shape, shape == (shape[0], 28, 28), "[channels, 28, 28]")
    return Blocks(
        "conv1",
        True,
        conv1=seq(*_conv(shape[0], 32, bias=False)),
        conv2=seq(*_conv(32, 32), nn.MaxPool2d(2)),
        conv3=seq(*_conv(32, 64), nn.MaxPool2d(2)),
        base=nn.Flatten(),
        latent=seq(nn.Linear(3136, width), nn.Sigmoid()),
        head=nn.Linear(width, classes),
    )


def vae_cifar(shape: tuple[int, ...], classes: int, width: int = 128, dropout: float = 0.2) -> Blocks:
    """32, 32, 64 and 64 channels, pooled twice; 4096 numbers to a latent of 128."""
    need("vae_cifar", shape, shape == (shape[0], 32, 32), "[channels, 32, 32]")
    return Blocks(
        "conv1",
        True,
        conv1=seq(*_conv(shape[0], 32, bias=False)),
        conv2=seq(*_conv(32, 32), nn.MaxPool2d(2), nn.Dropout(dropout)),
        conv3=seq(*_conv(32, 64)),
        conv4=seq(*_conv(64, 64), nn.MaxPool2d(2), nn.Dropout(dropout)),
        base=nn.Flatten(),
        latent=seq(nn.Linear(4096, width), nn.Sigmoid()),
        head=nn.Linear(width, classes),
    )
