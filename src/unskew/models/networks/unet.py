"""U-Net for masks (Ronneberger et al., MICCAI 2015), as FedFA and FedRDN use it for prostate MRI.

encoder l    twice (conv 3x3, BN, ReLU), base 2^(l-1) channels; pool l halves the side
bottleneck   the same on the lowest level
decoder l    transposed conv 2x2 doubles the side, concatenated with the encoder's output,
             then twice (conv, BN, ReLU)
head         conv 1x1 to the classes
"""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn

from unskew.models.blocks import is_image, require, seq


class UNet(nn.Module):
    """Named children in the order they run: enc1, pool1, enc2, ... bottleneck, ... up1, dec1, head.

    dense: one answer per pixel. maps: the cuts whose statistics FedFA augments, the pools and the bottleneck.
    Activations can be read and changed at every child, but a pass cannot go on from a cut alone, because
    the encoders' outputs reach the decoders past it.
    """

    dense = True
    folds = False
    cut = "bottleneck"

    def __init__(self, channels: int, classes: int, base: int, levels: int):
        super().__init__()
        self.levels = levels
        width = channels
        for l in range(1, levels):
            self.add_module(f"enc{l}", _twice(width, base << (l - 1)))
            self.add_module(f"pool{l}", nn.MaxPool2d(2))
            width = base << (l - 1)
        self.bottleneck = _twice(width, 2 * width)
        for l in range(levels - 1, 0, -1):
            width = base << (l - 1)
            self.add_module(f"up{l}", nn.ConvTranspose2d(2 * width, width, 2, 2))
            self.add_module(f"dec{l}", _twice(2 * width, width))
        self.head = nn.Conv2d(base, classes, 1)

    @property
    def maps(self) -> tuple[str, ...]:
        return (*(f"pool{l}" for l in range(1, self.levels)), "bottleneck")

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for l in range(1, self.levels):
            x = self.get_submodule(f"enc{l}")(x)
            skips.append(x)
            x = self.get_submodule(f"pool{l}")(x)
        x = self.bottleneck(x)
        for l in range(self.levels - 1, 0, -1):
            x = torch.cat([self.get_submodule(f"up{l}")(x), skips[l - 1]], 1)
            x = self.get_submodule(f"dec{l}")(x)
        return self.head(x)


def _twice(i: int, o: int) -> nn.Sequential:
    """Batch normalisation takes a bias away again, so the convolutions have none."""
    layers: list[nn.Module] = []
    for width in (i, o):
        layers += [nn.Conv2d(width, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU()]
    return seq(*layers)


def unet(
    shape: tuple[int, ...],
    classes: int,
    base: Annotated[int, Gt(0), "channels of the first level; they double from level to level"] = 32,
    levels: Annotated[int, Ge(2), Le(16), "levels, the bottleneck included"] = 5,
) -> UNet:
    """A U-Net; sides halve from level to level, so both must be multiples of 2^(levels - 1)."""
    side = 1 << (levels - 1)
    fits = is_image(shape, side) and not any(n % side for n in shape[1:])
    require(
        "unet", shape, fits, f"[channels, height, width], both multiples of {side} (with levels={levels})"
    )
    return UNet(shape[0], classes, base, levels)
