"""FedDPMS's encoder for 32x32 images (Chen & Vikalo, CVPRW 2023, public code), with a latent that the head
reads.

As `vae_fmnist`, with one convolution and two dropouts more.
"""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt, Lt
from torch import nn

from unskew.models.blocks import Blocks, require, seq
from unskew.models.networks.vae_fmnist import conv_prelu_norm


def vae_cifar(
    shape: tuple[int, ...],
    classes: int,
    width: Annotated[int, Gt(0), "numbers of the latent"] = 128,
    dropout: Annotated[float, Ge(0), Lt(1), "share of activations dropped after each pooling"] = 0.2,
) -> Blocks:
    """32, 32, 64 and 64 channels, pooled twice; 4096 numbers to a latent of 128."""
    require("vae_cifar", shape, shape == (shape[0], 32, 32), "[channels, 32, 32]")
    return Blocks(
        "conv1",
        True,
        conv1=seq(*conv_prelu_norm(shape[0], 32, bias=False)),
        conv2=seq(*conv_prelu_norm(32, 32), nn.MaxPool2d(2), nn.Dropout(dropout)),
        conv3=seq(*conv_prelu_norm(32, 64)),
        conv4=seq(*conv_prelu_norm(64, 64), nn.MaxPool2d(2), nn.Dropout(dropout)),
        base=nn.Flatten(),
        latent=seq(nn.Linear(4096, width), nn.Sigmoid()),
        head=nn.Linear(width, classes),
    )
