"""The five models of the speed benchmarks in plain torch, so that every virtual environment can build them.

They are the models of `unskew.models` written out once more on purpose: a reference must not need unskew.
Activations stand where the papers' code has them (LeNet: convolution, LeakyReLU, pooling). `rebafl_fmnist` of
unskew pools first, which is the same function and cheaper; `lenet(pool_first=True)` is that form for the
references.
"""

from collections.abc import Callable

from torch import Tensor, nn


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def lenet(pool_first: bool = False) -> nn.Module:
    """ReBaFL's Fashion-MNIST network, 28x28 in."""
    last: list[nn.Module] = (
        [nn.MaxPool2d(2), nn.LeakyReLU()] if pool_first else [nn.LeakyReLU(), nn.MaxPool2d(2)]
    )
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 5), *last),
        *(nn.Conv2d(16, 32, 5, padding=1), *last),
        *(nn.Flatten(), nn.Linear(800, 128), nn.LeakyReLU(), nn.Linear(128, 10)),
    )


def harnet() -> nn.Module:
    """1x128x3 in: 128 time steps, 3 axes."""
    blocks: list[nn.Module] = []
    channels = [1, 64, 128, 256, 256]
    for i, (kernel, stride) in enumerate([(3, 3), (6, 2), (6, 2), (6, 2)]):
        blocks.append(nn.Conv2d(channels[i], channels[i + 1], (kernel, 1), (stride, 1), padding=1))
        blocks += [nn.BatchNorm2d(channels[i + 1]), nn.ReLU()]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(8448, 6))


def audionet() -> nn.Module:
    """2x64x344 in: a stereo mel spectrogram. BatchNorm stands behind the ReLU."""
    blocks: list[nn.Module] = []
    channels = [2, 8, 16, 32, 64]
    for i, kernel in enumerate([5, 3, 3, 3]):
        blocks.append(nn.Conv2d(channels[i], channels[i + 1], kernel, 2, padding=kernel // 2))
        blocks += [nn.ReLU(), nn.BatchNorm2d(channels[i + 1])]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__()
        wide = expansion * inputs
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU()),
            *(nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU()),
            *(nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs)),
        )
        self.shortcut: nn.Module | None = None
        if stride == 1:
            same = inputs == outputs
            other = nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
            self.shortcut = nn.Identity() if same else other

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        return y if self.shortcut is None else y + self.shortcut(x)


def mobilenet_v2() -> nn.Module:
    """The CIFAR form, 3x32x32 in: rows are (expansion, outputs, repeats, first stride)."""
    rows = [
        (1, 16, 1, 1),
        (6, 24, 2, 1),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ]
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    inputs = 32
    for expansion, outputs, repeats, first_stride in rows:
        for i in range(repeats):
            layers.append(InvertedResidual(inputs, outputs, expansion, first_stride if i == 0 else 1))
            inputs = outputs
    layers += [nn.Conv2d(320, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU()]
    return nn.Sequential(*layers, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(1280, 10))


NETS: dict[str, Callable[[], nn.Module]] = {
    "rebafl_fmnist": lenet,
    "harnet": harnet,
    "audionet": audionet,
    "mobilenet_v2": mobilenet_v2,
    "mlp": mlp,
}
