"""FLea's network for movement windows of 1x128x3, HARNet (Xia et al., KDD 2024, public code)."""

from __future__ import annotations

from torch import nn

from unskew.models.blocks import Blocks, require
from unskew.models.time_convolution import TimeConv


def harnet(shape: tuple[int, ...], classes: int) -> Blocks:
    """Four convolutions over time, each padding the 3 signals with further columns; 8448 numbers go to the
    head."""
    require("harnet", shape, shape == (1, 128, 3), "[1, 128, 3]")
    return Blocks(
        "conv2",
        False,
        conv1=TimeConv(1, 64, 3, 3),
        conv2=TimeConv(64, 128, 6, 2),
        conv3=TimeConv(128, 256, 6, 2),
        conv4=TimeConv(256, 256, 6, 2),
        flat=nn.Flatten(),
        head=nn.Linear(8448, classes),
    )
