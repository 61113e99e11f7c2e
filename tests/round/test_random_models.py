"""Random models as users write them: a round ends with the weights of a plain loop of torch, or the model is
refused.

`UNSKEW_MATRIX=all` tries many more than `make test` does.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.round.test_as_written import CLASSES, C, plain, trained
from unskew.errors import UsageError

SEEDS = range(600) if os.environ.get("UNSKEW_MATRIX") == "all" else range(6)
RNG = np.random.default_rng(0)
DATA = [(RNG.normal(size=(n, 2, 8, 8)).astype(np.float32), np.arange(n) % CLASSES) for n in (3, 6, 11, 7)]
"""No client has a batch of one sample, where batch normalisation goes by its running statistics."""
FAR = 1e-4
"""The largest difference from the plain loop's, relative to a tensor's largest number, 1 at least."""


class Attention(nn.Module):
    """Channels weighed by what they hold."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(C, C)

    def forward(self, h: Tensor) -> Tensor:
        return h * torch.sigmoid(self.dense(h.mean((2, 3)))).unsqueeze(-1).unsqueeze(-1)


class Apply(nn.Module):
    """A function without weights."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, h: Tensor) -> Tensor:
        return self.function(h)


LAYERS = {
    "relu": lambda: nn.ReLU(inplace=True),
    "relu6": lambda: nn.ReLU6(inplace=True),
    "leaky": lambda: nn.LeakyReLU(0.1, inplace=True),
    "elu": lambda: nn.ELU(inplace=True),
    "silu": lambda: nn.SiLU(inplace=True),
    "dropout": lambda: nn.Dropout(0.3, inplace=True),
    "pointwise": lambda: nn.Conv2d(C, C, 1),
    "convolution": lambda: nn.Conv2d(C, C, 3, padding=1),
    "same": lambda: nn.Conv2d(C, C, 3, padding="same", bias=False),
    "depthwise": lambda: nn.Conv2d(C, C, 3, padding=1, groups=C),
    "dilated": lambda: nn.Conv2d(C, C, 3, padding=2, dilation=2, groups=2),
    "upwards": lambda: nn.Sequential(nn.Conv2d(C, C, 2, 2), nn.ConvTranspose2d(C, C, 2, 2)),
    "groups": lambda: nn.GroupNorm(2, C),
    "batch": lambda: nn.BatchNorm2d(C),
    "layer": lambda: nn.LayerNorm([8, 8]),
    "instance": lambda: nn.InstanceNorm2d(C, affine=True),
    "attention": Attention,
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(C, C, 1)),
    "pool": lambda: Apply(lambda h: F.interpolate(F.max_pool2d(F.relu(h), 2), scale_factor=2.0)),
    "average": lambda: Apply(lambda h: F.avg_pool2d(h, 3, 1, 1)),
    "rectified in place": lambda: Apply(lambda h: (h * 1.5).relu_()),
    "clamped": lambda: Apply(lambda h: h.clamp(-1, 1)),
    "shuffled": lambda: Apply(lambda h: h.unflatten(1, (2, C // 2)).transpose(1, 2).flatten(1, 2)),
    "turned": lambda: Apply(lambda h: h.transpose(2, 3).contiguous()),
    "halved": lambda: Apply(lambda h: torch.cat([h[:, : C // 2], h[:, C // 2 :].tanh()], 1)),
    "along time": lambda: Apply(lambda h: F.softmax(h.flatten(2), -1).view_as(h)),
    "centred": lambda: Apply(lambda h: h - h.mean((2, 3), keepdim=True)),
}
JOINED = ("add", "subtract the mean", "multiply", "cat", "gain")


class Drawn(nn.Module):
    """Layers drawn by a seed; some answers are joined with what an earlier layer was given or gave."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        torch.manual_seed(seed)
        self.first, self.head = nn.Conv2d(2, C, 3, padding=1), nn.Linear(C * 64, CLASSES)
        names = draw.choices(list(LAYERS), k=draw.randint(2, 5))
        made: dict[str, nn.Module] = {}
        self.layers = nn.ModuleList()
        for name in names:
            shared = name in made and draw.random() < 0.5
            made[name] = made[name] if shared else LAYERS[name]()
            self.layers.append(made[name])
        self.joins = {
            i: (draw.choice(JOINED), draw.randint(0, i)) for i in range(len(names)) if draw.random() < 0.4
        }
        self.gain = nn.Parameter(torch.zeros(C, 1, 1))  # a branch that is switched off at the start
        self.words = f"{names} {self.joins}"

    def forward(self, x: Tensor) -> Tensor:
        seen = [self.first(x)]
        for i, layer in enumerate(self.layers):
            h = layer(seen[-1])
            how, which = self.joins.get(i, ("", 0))
            earlier = seen[which]
            if how == "add":
                h = h + earlier
            elif how == "subtract the mean":
                h = h - earlier.mean((1, 2, 3), keepdim=True)
            elif how == "multiply":
                h = h * torch.sigmoid(earlier)
            elif how == "gain":
                h = h + self.gain * earlier
            elif how == "cat":
                h = torch.cat([h[:, : C // 2], earlier[:, C // 2 :]], 1)
            seen.append(h)
        return self.head(seen[-1].flatten(1))


def ended(run: Callable, expected: type[Exception], words: str) -> Mapping[str, Tensor]:
    """What the run gives, nothing if it ends in this error with these words."""
    try:
        return run()
    except expected as error:
        if words not in str(error):
            raise
        return {}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_model_trains_as_in_a_plain_loop_or_is_refused(seed):
    model = Drawn(seed)
    found = {
        lanes: ended(
            lambda lanes=lanes: trained(model, DATA, lanes=lanes).model.state_dict(),
            UsageError,
            "changes its input in place",
        )
        for lanes in ("1", "16")
    }
    if not all(found.values()):
        assert not any(found.values()), model.words
        assert seed == 2 or seed >= 6  # few are refused, or this would say little
        return
    plainly = ended(
        lambda: plain(model, by_itself=False, data=DATA), RuntimeError, "modified by an inplace operation"
    )  # nothing where nobody can train the model as it is written
    for lanes, weights in found.items():
        for name, t in plainly.items():
            if not name.endswith("num_batches_tracked"):
                far = float((weights[name] - t).abs().max()) / max(1.0, float(t.abs().max()))
                assert far < FAR, f"{lanes} lanes, '{name}' is {far:.2g} away: {model.words}"
