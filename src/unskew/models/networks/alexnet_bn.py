"""AlexNet with batch normalisation, as FedRDN and FedFA use it for Office-Caltech-10 and DomainNet.

Pooling stands before the ReLU (same values and gradients, less work).
"""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Gt
from torch import nn

from unskew.models.blocks import Blocks, is_image, require, seq


def alexnet_bn(
    shape: tuple[int, ...],
    classes: int,
    width: Annotated[int, Gt(0), "units of each dense layer"] = 4096,
    stem: Annotated[
        Literal["auto", "imagenet", "small"], "the first layer; auto: small below 160 px"
    ] = "auto",
) -> Blocks:
    """Five convolutions (64, 192, 384, 256, 256), average to 6x6, two dense layers of `width` with BN, head.

    stem: "imagenet" is 11x11 with stride 4, for 256 px; "small" is our fit for 64 to 128 px: 5x5 with stride
    2, and an average to 4x4 instead of 6x6.
    """
    small = stem == "small" or (stem == "auto" and not is_image(shape, 160))
    least = 48 if small else 63
    require(
        "alexnet_bn", shape, is_image(shape, least), f"[channels, height, width] of at least {least}x{least}"
    )
    first = nn.Conv2d(shape[0], 64, 5, 2, 2) if small else nn.Conv2d(shape[0], 64, 11, 4, 2)
    out = 4 if small else 6
    return Blocks(
        "conv1",
        False,
        conv1=seq(first, nn.BatchNorm2d(64), nn.MaxPool2d(3, 2), nn.ReLU()),
        conv2=seq(nn.Conv2d(64, 192, 5, padding=2), nn.BatchNorm2d(192), nn.MaxPool2d(3, 2), nn.ReLU()),
        conv3=seq(nn.Conv2d(192, 384, 3, padding=1), nn.BatchNorm2d(384), nn.ReLU()),
        conv4=seq(nn.Conv2d(384, 256, 3, padding=1), nn.BatchNorm2d(256), nn.ReLU()),
        conv5=seq(nn.Conv2d(256, 256, 3, padding=1), nn.BatchNorm2d(256), nn.MaxPool2d(3, 2), nn.ReLU()),
        pool=seq(nn.AdaptiveAvgPool2d(out), nn.Flatten()),
        fc6=seq(nn.Linear(256 * out * out, width), nn.BatchNorm1d(width), nn.ReLU()),
        fc7=seq(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU()),
        head=nn.Linear(width, classes),
    )
