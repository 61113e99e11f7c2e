"""A pass through a model's blocks, started, stopped and changed; and which weights a client remembers."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

from unskew.core.network import SequentialPasses
from unskew.methods import registry
from unskew.runs import conformance


class Plus(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number = number

    def forward(self, x):
        return x + self.number


@pytest.fixture
def blocks():
    model = nn.Sequential()
    for name, number in (("first", 1), ("second", 10), ("head", 100)):
        model.add_module(name, Plus(number))
    return SequentialPasses(model)


def passed(blocks, x=0.0, since=None, until=None, **taps):
    z, features = blocks.run(torch.tensor([[x]]), since, until, taps, contextlib.nullcontext)
    return float(z), float(features)


def test_a_pass_starts_behind_a_block_and_stops_with_one(blocks):
    assert (blocks.names, blocks.head, blocks.before_head) == (("first", "second", "head"), "head", "second")
    assert passed(blocks) == (111, 11)
    assert passed(blocks, since="first") == (110, 10)
    assert passed(blocks, since="second") == (100, 0)
    assert passed(blocks, until="first") == (1, 0)
    assert passed(blocks, since="first", until="second") == (10, 0)


def test_what_a_tap_returns_goes_on_at_every_block(blocks):
    """The head's included, whose output nothing follows."""
    assert passed(blocks, first=lambda name, h: 2 * h) == (112, 12)
    assert passed(blocks, second=lambda name, h: 0 * h) == (100, 0)
    assert passed(blocks, head=lambda name, z: -z) == (-111, 11)
    assert passed(blocks, until="second", second=lambda name, h: h + 5) == (16, 0)


def test_what_a_client_remembers_is_the_model_without_what_parts_train_beside_it():
    loop = conformance.train_run(registry.parse("fedphp+fedbr"), until=1).loop
    net, extra = loop.fed.net, set(loop.fed.net.extra)
    assert extra
    trees = [tree for tree in loop.store.fetch(range(loop.fed.clients)).values() if tree]
    assert trees
    for tree in trees:
        assert set(tree["fedphp"]["w"]) == {*net.trainable, *net.buffers} - extra
