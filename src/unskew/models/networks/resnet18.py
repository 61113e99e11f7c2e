"""ResNet-18 (He et al., CVPR 2016): its CIFAR form below 64 px, the strided stem from 64 px."""

from __future__ import annotations

from torch import Tensor, nn

from unskew.models.blocks import Blocks, is_image, require, seq


class Basic(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, i: int, o: int, stride: int):
        super().__init__()
        self.body = seq(
            nn.Conv2d(i, o, 3, stride, 1, bias=False),
            nn.BatchNorm2d(o),
            nn.ReLU(),
            nn.Conv2d(o, o, 3, 1, 1, bias=False),
            nn.BatchNorm2d(o),
        )
        changes = stride != 1 or i != o
        self.shortcut = (
            seq(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o)) if changes else nn.Identity()
        )
        self.last = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(x) + self.shortcut(x))


def resnet18(shape: tuple[int, ...], classes: int) -> Blocks:
    """Stem of 64 channels, four stages of two blocks (64, 128, 256, 512), average, head."""
    require("resnet18", shape, is_image(shape, 16), "[channels, height, width] of at least 16x16")
    if min(shape[1:]) < 64:
        stem = seq(nn.Conv2d(shape[0], 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
    else:
        stem = seq(
            nn.Conv2d(shape[0], 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.MaxPool2d(3, 2, 1), nn.ReLU()
        )
    stages = {f"stage{n + 1}": seq(Basic(i, o, s), Basic(o, o, 1)) for n, (i, o, s) in enumerate(_STAGES)}
    return Blocks(
        "stem",
        False,
        stem=stem,
        **stages,
        pool=seq(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        head=nn.Linear(512, classes),
    )


_STAGES = ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
