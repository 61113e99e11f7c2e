"""Networks that an attacker trains to turn payloads back into samples, with a fixed budget and early stopping.

    linear   maps: conv 1x1, transposed convs of stride 2 until the image's size is passed, conv of stride 2, conv 1x1, without
             non-linearities, as in FLea's public code; vectors: ridge regression, the best affine map there is
    deep     maps: convolutions with ReLU and nearest upsampling; vectors: two hidden layers

Letters: N samples, D values of a payload, P of a sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unskew.attacks.training import Lesson, fit_inputs, scale

WIDTH = 32
Decoder = Callable[[Tensor], Tensor]


def linear(lesson: Lesson) -> Decoder:
    """The affine decoder."""
    if _is_map(lesson):
        return _trained(lesson, _linear_maps(lesson.sent.shape[1:], lesson.x.shape[1:]))
    return _affine(lesson)


def deep(lesson: Lesson) -> Decoder:
    """The decoder with non-linearities."""
    if _is_map(lesson):
        return _trained(lesson, _deep_maps(lesson.sent.shape[1:], lesson.x.shape[1:]))
    values, pixels = lesson.sent[0].numel(), lesson.x[0].numel()
    dense = nn.Sequential(
        nn.Flatten(), nn.Linear(values, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, pixels)
    )
    return _trained(lesson, nn.Sequential(dense, nn.Unflatten(1, tuple(lesson.x.shape[1:]))))


def _is_map(lesson: Lesson) -> bool:
    return lesson.sent.dim() == 4 == lesson.x.dim()


def _doublings(maps: torch.Size, image: torch.Size) -> int:
    """How often maps must double to be as large as the image."""
    return max(0, math.ceil(math.log2(max(image[1] / maps[1], image[2] / maps[2]))))


def _linear_maps(maps: torch.Size, image: torch.Size) -> nn.Module:
    up = max(1, _doublings(maps, image))
    layers: list[nn.Module] = [nn.Conv2d(maps[0], WIDTH, 1)]
    layers += [nn.ConvTranspose2d(WIDTH, WIDTH, 3, 2, padding=1, output_padding=1) for _ in range(up)]
    if maps[1] * 2**up >= 2 * image[1]:
        layers.append(nn.Conv2d(WIDTH, WIDTH, 3, 2, padding=1))
    return nn.Sequential(*layers, nn.Conv2d(WIDTH, image[0], 1), _Resized(image))


def _deep_maps(maps: torch.Size, image: torch.Size) -> nn.Module:
    """Doublings that do not pass the image's size, for above it a step costs several times as much."""
    ratio = max(image[1] / maps[1], image[2] / maps[2])
    layers: list[nn.Module] = [nn.Conv2d(maps[0], 2 * WIDTH, 3, padding=1), nn.ReLU()]
    for _ in range(max(0, math.floor(math.log2(ratio)))):
        layers += [nn.Upsample(scale_factor=2.0), nn.Conv2d(2 * WIDTH, 2 * WIDTH, 3, padding=1), nn.ReLU()]
    layers += [_Resized(image), nn.Conv2d(2 * WIDTH, 2 * WIDTH, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(2 * WIDTH, image[0], 3, padding=1))


class _Resized(nn.Module):
    """Bilinear, to the image's size where it is another one."""

    def __init__(self, image: torch.Size):
        super().__init__()
        self.size = (int(image[1]), int(image[2]))

    def forward(self, x: Tensor) -> Tensor:
        return x if x.shape[2:] == self.size else F.interpolate(x, self.size, mode="bilinear", align_corners=False)


def _trained(lesson: Lesson, module: nn.Module) -> Decoder:
    return fit_inputs(lesson, module, F.mse_loss)


def _affine(lesson: Lesson) -> Decoder:
    """Ridge regression from payloads to pixels, its penalty chosen on the held-back quarter."""
    mean, std = scale(lesson.sent.flatten(1))  # of each value, or the map would have no constant of its own
    train, held = lesson.parts()
    a = ((lesson.sent.flatten(1) - mean) / std).double()
    b, middle = lesson.x.flatten(1).double(), lesson.x.flatten(1).double().mean(0)
    fits = ridge(a[train], b[train] - middle, [float(10.0**power) for power in range(-8, 3)])
    best = min(fits, key=lambda w: float((a[held] @ w + middle - b[held]).pow(2).mean()))
    shape = lesson.x.shape[1:]

    def decode(sent: Tensor) -> Tensor:
        flat = ((sent.flatten(1) - mean) / std).double()
        return (flat @ best + middle).to(lesson.x.dtype).reshape(-1, *shape)

    return decode


def ridge(a: Tensor, b: Tensor, penalties: Sequence[float]) -> list[Tensor]:
    """For each penalty the w, [D, P], that minimises |a w - b|^2 / N + penalty |w|^2. a: [N, D]. b: [N, P].

    By whichever of the two systems of equations has fewer unknowns: payloads may have many more values than there are samples.
    """
    n, d = a.shape
    eye = torch.eye(min(n, d), dtype=a.dtype)
    if d <= n:
        inner, outer = a.T @ a / n, a.T @ b / n
        return [torch.linalg.solve(inner + p * eye, outer) for p in penalties]
    inner = a @ a.T / n
    return [a.T @ torch.linalg.solve(inner + p * eye, b / n) for p in penalties]
