"""Models beside their papers' networks, written out layer by layer: their order, strides, shortcuts and what
is pooled.

Numbers of parameters do not tell any of these. Running statistics are drawn, so that a normalisation that
stands elsewhere is another network.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from unskew import models
from unskew.core.random_keys import key


class Layers:
    """A module's layers by name, each a plain function of its weights."""

    def __init__(self, weights: dict[str, Tensor]):
        self.w = weights

    def conv(self, x: Tensor, name: str, stride: int = 1, padding: int = 0, groups: int = 1) -> Tensor:
        return F.conv2d(
            x, self.w[f"{name}.weight"], self.w.get(f"{name}.bias"), stride, padding, groups=groups
        )

    def norm(self, x: Tensor, name: str) -> Tensor:
        """Batch normalisation by running statistics."""
        scale, shift, mean, var = (
            self.w[f"{name}.{n}"] for n in ("weight", "bias", "running_mean", "running_var")
        )
        at = (1, -1, *[1] * (x.dim() - 2))
        return (x - mean.view(at)) / (var.view(at) + 1e-5).sqrt() * scale.view(at) + shift.view(at)

    def dense(self, x: Tensor, name: str) -> Tensor:
        return x.flatten(1) @ self.w[f"{name}.weight"].T + self.w.get(f"{name}.bias", torch.zeros(()))

    def prelu(self, x: Tensor, name: str) -> Tensor:
        return torch.where(x > 0, x, self.w[f"{name}.weight"] * x)


def alexnet(l: Layers, x: Tensor, first: tuple[int, int], side: int) -> Tensor:
    """first: stride and padding of the first layer; side: of the maps that are averaged."""
    for n, (stride, padding, pooled) in enumerate(
        ((*first, 1), (1, 2, 1), (1, 1, 0), (1, 1, 0), (1, 1, 1)), 1
    ):
        x = l.norm(l.conv(x, f"conv{n}.0", stride, padding), f"conv{n}.1").relu()
        x = F.max_pool2d(x, 3, 2) if pooled else x
    x = F.adaptive_avg_pool2d(x, side)
    for name in ("fc6", "fc7"):
        x = l.norm(l.dense(x, f"{name}.0"), f"{name}.1").relu()
    return l.dense(x, "head")


def audionet(l: Layers, x: Tensor) -> Tensor:
    """Convolution, ReLU, batch normalisation, in this order."""
    for n in (1, 2, 3, 4):
        x = l.norm(l.conv(x, f"conv{n}.0", 2, 2 if n == 1 else 1).relu(), f"conv{n}.2")
    return l.dense(x.mean((2, 3)), "head")


def cnn_small(l: Layers, x: Tensor) -> Tensor:
    x = l.norm(l.conv(x, "conv1.0", 1, 1), "conv1.1").relu()
    x = F.max_pool2d(l.norm(l.conv(x, "conv2.0", 1, 1), "conv2.1").relu(), 2)
    return l.dense(l.dense(x, "fc.1").relu(), "head")


def mobilenet(l: Layers, x: Tensor) -> Tensor:
    """The paper's table 2, with stride 1 in the stem and in the second row, for 32 pixels."""
    x, n, channels = l.norm(l.conv(x, "stem.0", 1, 1), "stem.1").relu(), 0, 32
    for out, count, first in (
        (16, 1, 1),
        (24, 2, 1),
        (32, 3, 2),
        (64, 4, 2),
        (96, 3, 1),
        (160, 3, 2),
        (320, 1, 1),
    ):
        for i in range(count):
            stride, block = first if i == 0 else 1, f"block{n}"
            y = l.norm(l.conv(x, f"{block}.body.0"), f"{block}.body.1").relu()
            y = l.norm(l.conv(y, f"{block}.body.3", stride, 1, groups=y.shape[1]), f"{block}.body.4").relu()
            y = l.norm(l.conv(y, f"{block}.body.6"), f"{block}.body.7")
            if stride == 1:
                same = channels == out
                y = y + (x if same else l.norm(l.conv(x, f"{block}.shortcut.0"), f"{block}.shortcut.1"))
            x, n, channels = y, n + 1, out
    return l.dense(l.norm(l.conv(x, "last.0"), "last.1").relu().mean((2, 3)), "head")


def rebafl(l: Layers, x: Tensor) -> Tensor:
    for n, padding in ((1, 0), (2, 1), (3, 1)):
        x = F.max_pool2d(F.leaky_relu(l.conv(x, f"conv{n}.0", 1, padding), 0.01), 2)
    return l.dense(l.dense(x, "fc.1"), "head")


def resnet(l: Layers, x: Tensor) -> Tensor:
    large = x.shape[-1] >= 64
    x = l.norm(l.conv(x, "stem.0", *((2, 3) if large else (1, 1))), "stem.1").relu()
    x = F.max_pool2d(x, 3, 2, 1) if large else x
    for stage, first in enumerate((1, 2, 2, 2), 1):
        for i, stride in enumerate((first, 1)):
            block = f"stage{stage}.{i}"
            y = l.norm(l.conv(x, f"{block}.body.0", stride, 1), f"{block}.body.1").relu()
            y = l.norm(l.conv(y, f"{block}.body.3", 1, 1), f"{block}.body.4")
            past = (
                l.norm(l.conv(x, f"{block}.shortcut.0", stride), f"{block}.shortcut.1") if stride == 2 else x
            )
            x = (y + past).relu()
    return l.dense(x.mean((2, 3)), "head")


def vae(l: Layers, x: Tensor, pooled: tuple[int, ...], count: int) -> Tensor:
    for n in range(1, count + 1):
        x = l.norm(l.prelu(l.conv(x, f"conv{n}.0", 1, 1), f"conv{n}.1"), f"conv{n}.2")
        x = F.max_pool2d(x, 2) if n in pooled else x
    return l.dense(l.dense(x, "latent.0").sigmoid(), "head")


def unet(l: Layers, x: Tensor, levels: int) -> Tensor:
    """The paper's figure 1: what goes up comes first, what passes beside it second."""

    def twice(x: Tensor, name: str) -> Tensor:
        x = l.norm(l.conv(x, f"{name}.0", 1, 1), f"{name}.1").relu()
        return l.norm(l.conv(x, f"{name}.3", 1, 1), f"{name}.4").relu()

    past: dict[int, Tensor] = {}
    for n in range(1, levels):
        past[n] = twice(x, f"enc{n}")
        x = F.max_pool2d(past[n], 2)
    x = twice(x, "bottleneck")
    for n in range(levels - 1, 0, -1):
        x = F.conv_transpose2d(x, l.w[f"up{n}.weight"], l.w[f"up{n}.bias"], 2)
        x = twice(torch.cat([x, past[n]], 1), f"dec{n}")
    return l.conv(x, "head")


Written = Callable[[Layers, Tensor], Tensor]
PUBLISHED: list[tuple[str, tuple[int, ...], Written]] = [
    ("alexnet_bn(width=16)", (3, 64, 64), lambda l, x: alexnet(l, x, (2, 2), 4)),
    ("alexnet_bn(width=16, stem=small)", (3, 160, 160), lambda l, x: alexnet(l, x, (2, 2), 4)),
    ("alexnet_bn(width=16)", (3, 144, 144), lambda l, x: alexnet(l, x, (2, 2), 4)),
    ("alexnet_bn(width=16)", (3, 224, 224), lambda l, x: alexnet(l, x, (4, 2), 6)),
    ("audionet", (2, 64, 43), audionet),
    ("cnn_small(batch_norm=True)", (1, 8, 8), cnn_small),
    ("mobilenet_v2", (3, 16, 16), mobilenet),
    ("rebafl_cifar", (3, 32, 32), rebafl),
    ("resnet18", (3, 16, 16), resnet),
    ("resnet18", (3, 64, 64), resnet),
    ("vae_fmnist", (1, 28, 28), lambda l, x: vae(l, x, (2, 3), 3)),
    ("vae_cifar", (3, 32, 32), lambda l, x: vae(l, x, (2, 4), 4)),
]


def drawn(module: torch.nn.Module) -> dict[str, Tensor]:
    """Its tensors in float64, of which running statistics and the scales of norms are drawn too."""
    models.initialise(module, key("weights"))
    generator = key("statistics")
    with torch.no_grad():
        for name, t in (*module.named_buffers(), *module.named_parameters()):
            if name.endswith("running_var") or (t.dim() == 1 and name.endswith("weight")):
                t.copy_(0.5 + torch.rand(t.shape, generator=generator))
            elif t.dim() == 1:
                t.copy_(torch.randn(t.shape, generator=generator) / 4)
    module.eval().double()
    return dict(module.state_dict())


@pytest.mark.parametrize(("name", "shape", "written"), PUBLISHED)
def test_a_model_is_the_papers_network(name: str, shape: tuple[int, ...], written: Written) -> None:
    module = models.build(name, shape, 4)
    layers, x = Layers(drawn(module)), torch.rand(2, *shape, generator=key("x"), dtype=torch.float64)
    with torch.no_grad():
        found, expected = module(x), written(layers, x)
    assert float((expected[0] - expected[1]).abs().max()) > 1e-7
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("levels", [2, 4])
def test_a_unet_is_the_papers_network(levels: int) -> None:
    module = models.build(f"unet(base=4, levels={levels})", (1, 16, 16), 3, pixels=(16, 16))
    layers, x = Layers(drawn(module)), torch.rand(2, 1, 16, 16, generator=key("x"), dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(module(x), unet(layers, x, levels), rtol=1e-9, atol=1e-10)


def test_audionets_convolutions_begin_as_in_the_public_code() -> None:
    """Kaiming's deviation sqrt(2 / ((1 + 0.1^2) fan)), no bias."""
    module = models.build("audionet", (2, 64, 64), 10)
    models.initialise(module, key("weights"))
    for n, fan in ((3, 16 * 9), (4, 32 * 9)):
        layer = module.get_submodule(f"conv{n}.0")
        assert float(layer.weight.detach().std()) == pytest.approx((2 / (1.01 * fan)) ** 0.5, rel=0.02)
        assert not layer.bias.any()
