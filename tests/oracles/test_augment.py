"""Augmentation: each time a sample is drawn it is mirrored, moved and partly blanked, one sample after the
other.

Mirrored with probability `flip`; moved by dy rows and dx columns, each uniform in -shift .. shift, what
leaves the image is lost and zeros come in; then, along each axis, `width` neighbouring rows or columns,
uniform in 0 .. blank, become zero.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from tests.oracles.agreement import agree, on_both_models
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case, Law
from tests.oracles.values import Client


class Augment(FedAvg):
    part = "augment"
    flip = 0.5
    shift = 4
    blank = 0

    def arrive(self, c: Client) -> None:
        axes = (2,)
        self.mirror = self.noise(c, "mirror", Law("uniform")) if self.flip else None
        self.moves = (
            self.noise(c, "shift", Law("integers", (2 * self.shift + 1,), axes)) if self.shift else None
        )
        if self.blank:
            self.widths = self.noise(c, "width", Law("integers", (self.blank + 1,), axes))
            self.starts = self.noise(c, "start", Law("uniform", (), axes))

    def batch(self, c: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.stack([self.changed(x_i, c.step, i) for i, x_i in enumerate(x)]), y

    def changed(self, x: Tensor, step: int, i: int) -> Tensor:
        _, height, width = x.shape
        if self.mirror is not None and self.mirror[step][i] < self.flip:
            x = torch.stack([x[:, :, width - 1 - j] for j in range(width)], -1)
        if self.moves is not None:
            dy, dx = (int(m) - self.shift for m in self.moves[step][i])
            moved = torch.zeros_like(x)
            for row in range(height):
                for column in range(width):
                    if 0 <= row + dy < height and 0 <= column + dx < width:
                        moved[:, row, column] = x[:, row + dy, column + dx]
            x = moved
        if self.blank:
            x = x.clone()
            for axis, length in enumerate((height, width)):
                wide = int(self.widths[step][i][axis])
                first = math.floor(float(self.starts[step][i][axis]) * (length - wide + 1))
                x.narrow(1 + axis, first, wide).zero_()
        return x


@on_both_models
def test_augment(case: Case) -> None:
    agree(replace(case, shape=(2, 6, 6)), Augment, flip=0.4, shift=2, blank=3)


def test_its_defaults() -> None:
    agree(Case(), Augment)
