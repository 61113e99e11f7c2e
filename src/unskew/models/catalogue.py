"""The models in figures: what each takes, how large it is, what leaves it at its cut, and where it comes from."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from unskew import models
from unskew.models import count

_FLEA = "Xia et al., KDD 2024 (FLea), public code"
_REBAFL = "Xu et al., arXiv 2303.06314 (ReBaFL), public code"
SHOWN = (
    ("mlp", (1, 28, 28), 10, "ours"),
    ("cnn_small", (1, 8, 8), 10, "ours"),
    ("rebafl_fmnist", (1, 28, 28), 10, _REBAFL),
    ("rebafl_cifar", (3, 32, 32), 10, _REBAFL),
    ("harnet", (1, 128, 3), 6, _FLEA),
    ("audionet", (2, 64, 344), 10, _FLEA),
    ("mobilenet_v2", (3, 32, 32), 10, _FLEA),
    ("vae_fmnist", (1, 28, 28), 10, "Chen & Vikalo, CVPRW 2023 (FedDPMS), public code"),
    ("vae_cifar", (3, 32, 32), 10, "Chen & Vikalo, CVPRW 2023 (FedDPMS), public code"),
    ("alexnet_bn", (3, 256, 256), 10, "FedRDN: 4096 units"),
    ("alexnet_bn(width=1024)", (3, 256, 256), 10, "FedFA, public code: 1024 units"),
    ("alexnet_bn(width=1024)", (3, 64, 64), 10, "our fit: a smaller stem, average to 4x4"),
    ("resnet18", (3, 32, 32), 10, "He et al., CVPR 2016, CIFAR form"),
    ("resnet18", (3, 64, 64), 10, "He et al., CVPR 2016, ImageNet stem"),
)
"""Name, sample, classes, source."""
WITH_MASKS = (("unet", (3, 384, 384), 2, "Ronneberger et al., MICCAI 2015; base 32: FedFA, public code"),)
"""The same, of models that answer for every pixel."""


@dataclass(frozen=True)
class Row:
    """One model at one shape of samples. features: what the head receives, numbers a sample."""

    name: str
    shape: tuple[int, ...]
    classes: int
    parameters: int
    multiply_adds: int
    cut: str
    cut_shape: tuple[int, ...]
    features: int
    source: str


def row(name: str, shape: tuple[int, ...], classes: int, source: str, pixels: tuple[int, ...] = ()) -> Row:
    with torch.device("meta"):  # shapes alone: nothing is allocated or computed
        module = models.build(name, shape, classes, pixels)
        before = [n for n, _ in module.named_children()][-2]
        return Row(
            name,
            shape,
            classes,
            count.parameters(module),
            count.multiply_adds(module, shape),
            module.cut,
            count.shape_at(module, shape, module.cut),
            math.prod(count.shape_at(module, shape, before)),
            source,
        )


def rows() -> list[Row]:
    return [row(*shown) for shown in SHOWN] + [row(*shown, pixels=shown[1][1:]) for shown in WITH_MASKS]


def table() -> str:
    """Markdown."""
    head = "| model | sample | classes | parameters | multiply-adds | default cut | numbers there | features | source |"
    lines = [
        f"| `{r.name}` | {_by(r.shape)} | {r.classes} | {r.parameters:,} | {r.multiply_adds:,} "
        f"| `{r.cut}` {_by(r.cut_shape)} | {math.prod(r.cut_shape):,} | {r.features:,} | {r.source} |"
        for r in rows()
    ]
    return "\n".join([head, "|---" * 9 + "|", *lines])


def _by(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
