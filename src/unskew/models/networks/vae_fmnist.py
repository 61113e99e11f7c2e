"""FedDPMS's encoder for 28x28 images (Chen & Vikalo, CVPRW 2023, public code), with a latent that the head
reads.

Blocks of 3x3 convolution, PReLU and batch normalisation; `latent` is sigmoid(mu), in [0, 1]^width. The
decoder and the variance are needed in training only, and belong to the method (unskew.methods.feddpms).
"""

from __future__ import annotations

from typing import Annotated

from annotated_types import Gt
from torch import nn

from unskew.models.blocks import Blocks, require, seq


def conv_prelu_norm(i: int, o: int, bias: bool = True) -> tuple[nn.Module, ...]:
    """The layers of one block, from i to o channels."""
    return nn.Conv2d(i, o, 3, padding=1, bias=bias), nn.PReLU(), nn.BatchNorm2d(o)


def vae_fmnist(
    shape: tuple[int, ...], classes: int, width: Annotated[int, Gt(0), "numbers of the latent"] = 32
) -> Blocks:
    """32, 32 and 64 channels, pooled twice; 3136 numbers to a latent of 32."""
    require("vae_fmnist", shape, shape == (shape[0], 28, 28), "[channels, 28, 28]")
    return Blocks(
        "conv1",
        True,
        conv1=seq(*conv_prelu_norm(shape[0], 32, bias=False)),
        conv2=seq(*conv_prelu_norm(32, 32), nn.MaxPool2d(2)),
        conv3=seq(*conv_prelu_norm(32, 64), nn.MaxPool2d(2)),
        base=nn.Flatten(),
        latent=seq(nn.Linear(3136, width), nn.Sigmoid()),
        head=nn.Linear(width, classes),
    )
