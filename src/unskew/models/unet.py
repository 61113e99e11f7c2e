"""U-Net (Ronneberger et al., MICCAI 2015), as FedFA and FedRDN use it for prostate MRI: base 32, five levels.

encoder l    twice (conv 3x3, BN, ReLU), base 2^(l-1) channels; pool l halves the side
bottleneck   the same on the lowest level
decoder l    transposed conv 2x2 doubles the side, then the encoder's output beside it, then twice (conv, BN, ReLU)
head         conv 1x1 to the classes
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unskew.models.blocks import need, seq


class UNet(nn.Module):
    """Named children in the order they run: enc1, pool1, enc2, ... bottleneck, ... up1, dec1, head.

    maps: the cuts FedFA shakes, the pools and the bottleneck. Activations can be seen and changed at every child, but a
    pass cannot go on from a cut alone (`skips`): what the encoders hand to the decoders passes it by.
    """

    dense = True
    folds = False
    skips = True
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


def unet(shape: tuple[int, ...], classes: int, base: int = 32, levels: int = 5) -> UNet:
    """base: channels of the first level; levels: the bottleneck included, at least 2."""
    if base < 1 or levels < 2:
        raise ValueError(f"base should be at least 1 and levels at least 2, got base={base}, levels={levels}")
    side = 1 << (levels - 1)
    fits = len(shape) == 3 and not any(n % side or n < side for n in shape[1:])
    need("unet", shape, fits, f"[channels, height, width], both multiples of {side} (with levels={levels})")
    return UNet(shape[0], classes, base, levels)
