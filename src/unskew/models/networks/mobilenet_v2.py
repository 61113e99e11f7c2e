"""MobileNetV2 in its CIFAR form (Sandler et al., CVPR 2018), as FLea's public code uses it."""

from __future__ import annotations

from torch import Tensor, nn

from unskew.models.blocks import Blocks, is_image, require, seq

# expansion, channels, blocks, stride of the first
_PLAN = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class Inverted(nn.Module):
    """1x1 widening, 3x3 depthwise, 1x1 narrowing; a shortcut, by 1x1 where channels change, whenever the
    stride is 1."""

    def __init__(self, i: int, o: int, expansion: int, stride: int):
        super().__init__()
        wide = i * expansion
        self.body = seq(
            nn.Conv2d(i, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU(),
            nn.Conv2d(wide, o, 1, bias=False),
            nn.BatchNorm2d(o),
        )
        self.shortcut = (
            seq(nn.Conv2d(i, o, 1, bias=False), nn.BatchNorm2d(o))
            if stride == 1 and i != o
            else nn.Identity()
        )
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        return y + self.shortcut(x) if self.stride == 1 else y


def mobilenet_v2(shape: tuple[int, ...], classes: int) -> Blocks:
    """Stem, 17 inverted residuals (block0 to block16), a last 1x1 convolution to 1280, average, head."""
    require("mobilenet_v2", shape, is_image(shape, 16), "[channels, height, width] of at least 16x16")
    blocks: dict[str, nn.Module] = {
        "stem": seq(nn.Conv2d(shape[0], 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
    }
    channels = 32
    for expansion, out, count, stride in _PLAN:
        for i in range(count):
            blocks[f"block{len(blocks) - 1}"] = Inverted(channels, out, expansion, stride if i == 0 else 1)
            channels = out
    last = seq(nn.Conv2d(channels, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU())
    return Blocks(
        "block0",
        False,
        **blocks,
        last=last,
        pool=seq(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        head=nn.Linear(1280, classes),
    )
