"""Initial weights: PyTorch's rules, AudioNet's own, and what is left alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from unskew import models
from unskew.core.keys import key


@pytest.mark.parametrize(
    ("name", "shape"),
    [("mobilenet_v2", (3, 32, 32)), ("resnet18", (3, 64, 64)), ("rebafl_cifar", (3, 32, 32)), ("mlp", (6,))],
)
def test_the_same_bits_as_pytorch_gives_from_that_seed(name, shape):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        theirs = models.build(name, shape, 10)
        torch.manual_seed(8)
        ours = models.build(name, shape, 10)
        state = torch.get_rng_state()
        models.initialise(ours, torch.Generator().manual_seed(7))
        assert torch.equal(torch.get_rng_state(), state)  # the global generator was not touched
    assert all(
        torch.equal(a, b)
        for a, b in zip(theirs.state_dict().values(), ours.state_dict().values(), strict=True)
    )


def test_batch_normalisation_starts_anew():
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    fresh = {n: t.clone() for n, t in nn.BatchNorm1d(4).state_dict().items()}
    module(torch.rand(5, 3, generator=key("x")))
    nn.init.constant_(module[1].weight, 3.0)
    nn.init.constant_(module[1].bias, 3.0)
    assert not torch.equal(module[1].running_mean, fresh["running_mean"])
    models.initialise(module, key("b"))
    assert all(torch.equal(t, fresh[n]) for n, t in module[1].state_dict().items())


def test_audionets_own_rule():
    module = models.build("audionet", (2, 64, 344), 10)
    models.initialise(module, key("audio"))
    convolutions = [m for m in module.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 4
    assert all((m.bias == 0).all() for m in convolutions)
    last = convolutions[-1].weight  # 18,432 numbers of standard deviation sqrt(2 / (1 + 0.1^2) / fan-in)
    expected = math.sqrt(2 / 1.01 / (32 * 9))
    assert abs(last.std().item() / expected - 1) < 0.03
    assert last.abs().max() > 3 * expected  # normal, not uniform
    assert module.head.bias.abs().max() > 0
    order = [type(m) for m in module.conv1]
    assert order == [nn.Conv2d, nn.ReLU, nn.BatchNorm2d]


class Odd(nn.Module):
    """Holds a parameter of its own beside layers."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((3,), 5.0))
        self.words = nn.Embedding(4, 3)
        self.up = nn.ConvTranspose2d(3, 2, 2)


def test_layers_it_does_not_know_keep_their_values_and_are_named():
    module = Odd()
    before = {n: t.clone() for n, t in module.state_dict().items()}
    assert models.initialise(module, key("odd")) == ["", "words"]
    after = module.state_dict()
    assert torch.equal(after["scale"], before["scale"])
    assert torch.equal(after["words.weight"], before["words.weight"])
    assert not torch.equal(after["up.weight"], before["up.weight"])
