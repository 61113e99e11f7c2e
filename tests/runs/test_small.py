"""How many clients train side by side on a CPU follows from how small a step of one is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import unskew
from unskew.config import Settings
from unskew.core.network import Network
from unskew.errors import UsageError
from unskew.runs.hardware import MOST_LANES, is_small, lanes_of


def lenet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def broad() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 5), nn.ReLU(), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.Flatten(), nn.Linear(36864, 10)
    )


def auto(net: Network, batch: int = 32) -> int:
    return lanes_of(Settings(batch=batch), net, "cpu")


def test_models_with_small_steps_train_side_by_side_and_those_with_large_ones_do_not():
    assert auto(Network(lenet(), (1, 28, 28))) == MOST_LANES
    assert auto(Network(broad(), (3, 32, 32))) == 1


def test_a_large_batch_makes_a_step_large():
    net = Network(lenet(), (1, 28, 28))
    assert auto(net, 128) == MOST_LANES  # 53 million products
    assert auto(net, 160) == 1


def test_activations_make_a_step_large_whatever_is_multiplied():
    layers = [nn.Conv2d(1, 1, 1), *[nn.Tanh() for _ in range(40)], nn.Flatten(), nn.Linear(784, 10)]
    net = Network(nn.Sequential(*layers), (1, 28, 28))
    assert is_small(net, 32)
    assert not is_small(net, 160)  # 3 kB a layer and sample


def test_a_layer_that_no_sample_can_have_to_itself_is_named_with_the_way_out():
    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.block = torch.nn.TransformerEncoderLayer(4, 1, 4, dropout=0.1, batch_first=True)
            self.head = torch.nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.block(x[:, None]).mean(1))

    x, y = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32), np.arange(30) % 3
    with pytest.raises(UsageError, match=r"E108 .*dropout=0\.0"):
        unskew.run("dpsgd", (x, y), model=Attention(), clients=2, skew="iid", rounds=1)
