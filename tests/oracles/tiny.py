"""What engine and oracles are given: a tiny federation, its models, how it trains, and everything that is
random.

Five clients hold 60 images in four classes, of 6x6 pixels unless a case says otherwise. Letters: N samples, B
batch, C classes, E epochs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

SIZES = (1, 13, 22, 8, 16)
"""Training samples of each client: one has a single sample."""
CLASSES = 4
TESTS = 6
"""Test samples of each client."""
ATTENDANCE = ((0, 1, 3, 4), (1, 2, 3), (0, 1, 2, 4))
"""Who answers in rounds 1, 2 and 3: everybody misses a round but client 1; client 2 comes late, 0 and 4 come
back."""

Tree = dict[str, Any]
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """How the tiny federation trains; engine and oracle are given the same.

    sites: clients are the owners in `Samples`; else samples are dealt to them at random, and no test sample
    belongs to
    anybody. overflowing: clients with pixels so large that float32 cannot hold their sum.
    """

    model: str = "mlp"
    momentum: float = 0.0
    attendance: tuple[tuple[int, ...], ...] = ATTENDANCE
    batch: int = 5
    epochs: int = 2
    lr: float = 0.1
    lr_decay: float = 0.9
    weight_decay: float = 0.01
    optimiser: str = "sgd"
    seed: int = 3
    shape: tuple[int, int, int] = (1, 6, 6)
    sites: bool = True
    overflowing: tuple[int, ...] = ()

    @property
    def rounds(self) -> int:
        return len(self.attendance)

    def rate(self, t: int) -> float:
        """The learning rate of round t."""
        return self.lr * self.lr_decay ** (t - 1)


@dataclass(frozen=True)
class Samples:
    """x_N..., y_N and the client of every sample, for training and for tests."""

    x: Tensor
    y: Tensor
    owner: Tensor
    x_test: Tensor
    y_test: Tensor
    owner_test: Tensor


def samples(case: Case) -> Samples:
    """60 images and 30 to test on; client 2 lacks the last class, client 4 the first two."""
    draw = torch.Generator().manual_seed(11)
    patterns = torch.randn(CLASSES, *case.shape, generator=draw)

    def images(y: Tensor) -> Tensor:
        return patterns[y] + torch.randn(len(y), *case.shape, generator=draw)

    owner = torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES))
    y = torch.randint(CLASSES, owner.shape, generator=draw)
    y[owner == 2] %= CLASSES - 1
    y[owner == 4] = 2 + y[owner == 4] % 2
    mixed = torch.randperm(len(y), generator=draw)
    owner_test = torch.arange(len(SIZES)).repeat_interleave(TESTS)
    y_test = torch.randint(CLASSES, owner_test.shape, generator=draw)
    x = images(y)
    for k in case.overflowing:
        x[owner == k] = 3e38
    return Samples(x[mixed], y[mixed], owner[mixed], images(y_test), y_test, owner_test)


def model_named(name: str, shape: tuple[int, int, int] = Case.shape) -> nn.Sequential:
    """A tiny MLP, or a tiny CNN with batch normalisation, for images of this shape.

    Smooth activations and mean pooling: near a kink float32 and float64 could take different sides.
    """
    channels, height, width = shape
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        blocks = nn.Sequential()
        if name == "mlp":
            blocks.add_module(
                "fc", nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 7), nn.Tanh())
            )
        else:
            conv = nn.Sequential(
                nn.Conv2d(channels, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Tanh(), nn.AvgPool2d(2)
            )
            blocks.add_module("conv", conv)
            blocks.add_module(
                "fc", nn.Sequential(nn.Flatten(), nn.Linear(3 * (height // 2) * (width // 2), 7), nn.Tanh())
            )
        blocks.add_module("head", nn.Linear(7, CLASSES))
        return blocks


NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and running statistics; the counter of batches, which nobody reads, is left out."""
    yield from model.named_parameters()
    yield from ((n, b) for n, b in model.named_buffers() if b.is_floating_point())


def weights_of(model: nn.Module) -> Weights:
    """Copies of all weights and running statistics."""
    return {n: t.detach().clone() for n, t in named_tensors(model)}


@dataclass(frozen=True)
class Law:
    """How a random number is distributed, and how many a step needs.

    name: "uniform" on [0, 1), "normal", "beta" (args a, b), "integers" below args[0], or "cycle": the numbers
    below args[0] in shuffled order, again and again.
    """

    name: str
    args: tuple[float, ...] = ()
    shape: tuple[int, ...] = ()
    per_sample: bool = True


class Given(Protocol):
    """What an oracle does not compute itself: the model's first weights, and everything that is random."""

    @property
    def case(self) -> Case: ...

    @property
    def weights(self) -> Weights:
        """All weights before round 1, also those trained beside the model's."""
        ...

    def rows(self, k: int) -> Tensor:
        """The rows of client k's training samples."""
        ...

    def orders(self, t: int, k: int) -> Tensor:
        """The order in which client k visits its rows in round t, [E, n]."""
        ...

    def noise(self, t: int, k: int, steps: int, what: tuple[str, str], law: Law) -> Tensor:
        """Random numbers of client k in round t, what: (part, name); [steps, B, *shape] or [steps,
        *shape]."""
        ...

    def sample(self, k: int, count: int, purpose: str, replace: bool = False) -> Tensor:
        """The rows of `count` of client k's samples, chosen at random for this purpose."""
        ...

    def reserved(self) -> tuple[Tensor, Tensor]:
        """Inputs and labels of the samples that the server holds back from the clients."""
        ...

    def generator(self, *purpose: object) -> torch.Generator:
        """A generator of the random numbers that the server draws for this purpose."""
        ...
