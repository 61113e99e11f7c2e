"""Models as users write them, trained for a round and compared with a plain loop of torch on the same
batches.

Likely mistakes: statistics of a batch that the model computes by itself, while short batches are padded;
dropout of something whose first axis is not the batch; a layer that works in place, whose input the model
goes on with.
"""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unskew
from unskew.core import key
from unskew.errors import UsageError

SIZES, BATCH, RATE, CLASSES, C = (1, 5, 11, 3), 4, 0.05, 3, 4
RNG = np.random.default_rng(0)
DATA = [(RNG.normal(size=(n, 2, 8, 8)).astype(np.float32), np.arange(n) % CLASSES) for n in SIZES]


class Model(nn.Module):
    """A convolution, what a test puts between, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(2, C, 3, padding=1)
        self.head = nn.Linear(C * 64, CLASSES)
        self.made()

    def made(self) -> None:
        """Further layers."""

    def between(self, h: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.between(self.conv(x)).flatten(1))


class OwnNorm(Model):
    def between(self, h):
        return (h - h.mean((0, 2, 3), keepdim=True)) / (
            h.var((0, 2, 3), keepdim=True, unbiased=False) + 1e-3
        ).sqrt()


class Centred(Model):
    def between(self, h):
        return h - h.mean(0, keepdim=True)


class OwnRunning(Model):
    def made(self):
        self.register_buffer("mean", torch.zeros(C))

    def between(self, h):
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(0.1 * h.mean((0, 2, 3)))
        return h - self.mean.view(1, C, 1, 1)


class TorchNorm(Model):
    def made(self):
        self.register_buffer("mean", torch.zeros(C))
        self.register_buffer("var", torch.ones(C))

    def between(self, h):
        return torch.batch_norm(h, None, None, self.mean, self.var, self.training, 0.1, 1e-5, False)


class NoRunning(Model):
    def between(self, h):
        return F.batch_norm(h, None, None, training=True)


class Groups(Model):
    def between(self, h):
        return F.group_norm(h, num_groups=2)


class Viewed(Model):
    def between(self, h):
        return F.relu(h).view(h.size(0), -1).view_as(h).view(h.shape[0], C, 64)


class Standardised(Model):
    """Weights of four axes, as a row each."""

    def forward(self, x):
        w = self.conv.weight
        w = w / w.view(w.size(0), -1).norm(dim=1).view(-1, 1, 1, 1)
        return self.head(F.conv2d(x, w, padding=1).view(x.size(0), -1))


class Fourier(Model):
    def made(self):
        self.filter = nn.Parameter(torch.randn(C, 8, 5, 2))

    def between(self, h):
        return torch.fft.irfft2(torch.fft.rfft2(h) * torch.view_as_complex(self.filter), s=(8, 8))


class PooledAsOneImage(Model):
    """Samples and channels are one axis, so that pooling sees [channels, H, W]."""

    def between(self, h):
        rows = F.avg_pool2d(F.max_pool2d(h.flatten(0, 1), 3, 1, 1), 3, 1, 1)
        return F.adaptive_avg_pool2d(rows, (8, 8)).unflatten(0, (len(h), C))


class ThrownAway(Model):
    def between(self, h):
        F.dropout(h, 0.5, self.training, inplace=True)
        return h


class WeightsDropped(Model):
    def forward(self, x):
        weight = F.dropout(self.head.weight, 0.5, self.training)
        return F.linear(self.conv(x).flatten(1), weight, self.head.bias)


class OneMask(Model):
    def made(self):
        self.scale = nn.Parameter(torch.ones(C))

    def between(self, h):
        return h * F.dropout(self.scale, 0.5, self.training).view(1, C, 1, 1)


class Keyed(torch.overrides.TorchFunctionMode):
    """Dropout with a client's own numbers."""

    def __init__(self, generator: torch.Generator):
        super().__init__()
        self.generator = generator

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return self.dropout(*args, **(kwargs or {})) if func is F.dropout else func(*args, **(kwargs or {}))

    def dropout(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training:
            return x
        factor = (torch.rand(x.shape, generator=self.generator) >= p) / (1 - p or 1)
        return x.mul_(factor) if inplace else x * factor


def plain(model: nn.Module, by_itself: bool, data: list = DATA) -> dict[str, Tensor]:
    """The weights after a round. by_itself: whether dropout draws from torch's own generator."""
    merged: dict[str, Tensor] = {}
    for k, (x, y) in enumerate(data):
        own = copy.deepcopy(model).train()
        optimiser = torch.optim.SGD(own.parameters(), lr=RATE)
        orders, keyed = key(0, 1, k, "batch"), Keyed(key(0, 1, k, "dropout"))
        torch.manual_seed(key(0, 1, k, "model").initial_seed())
        for _ in range(2):
            for rows in torch.randperm(len(y), generator=orders).split(BATCH):
                optimiser.zero_grad()
                if by_itself:
                    z = own(torch.tensor(x)[rows])
                else:
                    with keyed:
                        z = own(torch.tensor(x)[rows])
                F.cross_entropy(z, torch.tensor(y)[rows]).backward()
                optimiser.step()
        share = len(y) / sum(len(labels) for _, labels in data)
        merged = {n: merged.get(n, 0) + share * t.detach() for n, t in own.state_dict().items()}
    return merged


def trained(model: nn.Module, data: list = DATA, **options) -> unskew.Result:
    settings = {"rounds": 1, "epochs": 2, "batch": BATCH, "lr": RATE, "normalise": "none"}
    settings |= {"device": "cpu", "workers": 1}
    clients = {str(k): (x, y, x[:1], y[:1]) for k, (x, y) in enumerate(data)}
    return unskew.run("fedavg", clients, model=copy.deepcopy(model), **(settings | options))


@pytest.mark.parametrize(
    ("made", "side_by_side"),
    [
        (OwnNorm, False),
        (Centred, False),
        (OwnRunning, False),
        (TorchNorm, False),
        (NoRunning, True),
        (Groups, True),
        (Viewed, True),
        (Standardised, True),
        (Fourier, True),
        (PooledAsOneImage, True),
        (ThrownAway, True),
        (WeightsDropped, False),
        (OneMask, False),
    ],
)
def test_a_round_is_that_of_a_plain_loop(made, side_by_side):
    """Padded rows counted in statistics of a model's own; masks of weights were broadcast, or ended the run;
    `x.view(len(x),
    -1)` after a convolution, and `num_groups=`, were refused; dropout in place, its answer thrown away, did
      nothing."""
    model = made()
    expected = plain(model, by_itself=made in (WeightsDropped, OneMask))
    for lanes in ("1", "16") if side_by_side else ("16",):
        result = trained(model, lanes=lanes)
        assert result.run.lanes == (16 if side_by_side and lanes != "1" else 1), lanes
        for name, t in result.model.state_dict().items():
            torch.testing.assert_close(
                t, expected[name], rtol=0, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
            )


class PreActivated(Model):
    """A residual block whose shortcut takes what the rectifier has left of its input."""

    def made(self):
        self.relu, self.second = nn.ReLU(inplace=True), nn.Conv2d(C, C, 1)

    def between(self, h):
        return self.second(self.relu(h)) + h


class LayerThrownAway(Model):
    def made(self):
        self.drop = nn.Dropout(0.5, inplace=True)

    def between(self, h):
        self.drop(h)
        return h


class SwitchedOff(Model):
    """What the layer changes does not count at the start, where its gain is 0."""

    def __init__(self):
        super().__init__()
        self.relu, self.gain = nn.ReLU(inplace=True), nn.Parameter(torch.zeros(()))

    def between(self, h):
        return self.relu(h) + self.gain**2 * h.mean()


class PythonsOwn(Model):
    def between(self, h):
        return h * (random.random() < 0.5)


class NumPysOwn(Model):
    def between(self, h):
        return h * float(np.random.rand())


class DroppedAlways(Model):
    def between(self, h):
        return F.dropout(h, 0.3)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        *(
            (kind, r"a layer of the model \('relu'\) changes its input")
            for kind in (PreActivated, SwitchedOff)
        ),
        (LayerThrownAway, r"a layer of the model \('drop'\) changes its input in place"),
        (PythonsOwn, r"the model's forward draws from Python's `random`, which no seed of a run reaches"),
        (DroppedAlways, r"the model draws random numbers in evaluation mode"),
        (NumPysOwn, r"the model's forward draws from `numpy\.random`"),
    ],
)
def test_what_would_train_another_model_is_refused(made, told):
    """It was trained as if the layer left its input alone, or to other weights in every run."""
    with pytest.raises(UsageError, match=f"E123 {told}"):
        trained(made())


def test_layers_in_place_whose_input_nobody_reads_again_train():
    layers = (
        nn.Conv2d(2, C, 3),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(C * 36, 8),
        nn.ReLU6(inplace=True),
    )
    model = nn.Sequential(*layers, nn.Linear(8, CLASSES))
    expected = plain(model, by_itself=False)
    weights = trained(model).model.state_dict()
    assert max(float((weights[n] - expected[n]).abs().max()) for n in expected) < 1e-5


def test_normalised_batches_may_be_padded():
    """Padding leaves their statistics as they are, so they keep their lanes; small gradients count."""
    layers = [nn.Conv2d(2, C, 3), nn.BatchNorm2d(C), nn.Flatten(), nn.Linear(C * 36, CLASSES)]
    assert trained(nn.Sequential(*layers), lanes="16").run.lanes == 16
    faint = Centred()
    with torch.no_grad():
        faint.head.weight.mul_(1e-3)
    assert trained(faint, lanes="16").run.lanes == 1
