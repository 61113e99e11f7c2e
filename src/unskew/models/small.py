"""A dense network for anything, and a small CNN for the 8x8 digits."""

from __future__ import annotations

import math
from itertools import pairwise

from torch import nn

from unskew.models.blocks import Blocks, need, seq


def mlp(shape: tuple[int, ...], classes: int, hidden: tuple[int, ...] = (128,)) -> Blocks:
    """Flatten, then dense layers with ReLU. Cut after the first."""
    widths = [math.prod(shape), *hidden]
    dense = {f"fc{i + 1}": seq(nn.Linear(a, b), nn.ReLU()) for i, (a, b) in enumerate(pairwise(widths))}
    return Blocks("fc1" if hidden else "flat", True, flat=nn.Flatten(), **dense, head=nn.Linear(widths[-1], classes))


def cnn_small(shape: tuple[int, ...], classes: int) -> Blocks:
    """Two 3x3 convolutions (16, 32 channels), one pooling, a dense layer of 64."""
    need("cnn_small", shape, len(shape) == 3 and min(shape[1:]) >= 4, "[channels, height, width] of at least 4x4")
    inside = 32 * (shape[1] // 2) * (shape[2] // 2)
    return Blocks(
        "conv1",
        True,
        conv1=seq(nn.Conv2d(shape[0], 16, 3, padding=1), nn.ReLU()),
        conv2=seq(nn.Conv2d(16, 32, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        fc=seq(nn.Flatten(), nn.Linear(inside, 64), nn.ReLU()),
        head=nn.Linear(64, classes),
    )
