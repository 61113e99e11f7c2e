"""What a program gives as an object is remembered by a digest: another model or Part does not continue a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import pytest
import torch
from torch import nn

import unskew
from unskew.core import Part
from unskew.engine import check, given
from unskew.errors import StateError


@dataclass(frozen=True)
class Mild(Part):
    strength: Annotated[float, "how much"] = 1.0
    name = "mild"


def first_kind() -> type[Part]:
    @dataclass(frozen=True)
    class Own(Part):
        name = "own"

        def loss(self, w, out, b, c):
            return 0.001 * out.logits.square().sum()

    return Own


def second_kind() -> type[Part]:
    @dataclass(frozen=True)
    class Own(Part):
        name = "own"

        def loss(self, w, out, b, c):
            return 0.1 * out.logits.square().sum()

    return Own


def module(seed: int = 0, width: int = 4, frozen: bool = False) -> nn.Sequential:
    torch.manual_seed(seed)
    federation = check.federation()
    size = math.prod(federation.shape)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(size, width), nn.ReLU(), nn.Linear(width, federation.n_classes))
    layers[1].requires_grad_(not frozen)
    return layers


def run(tmp_path, method="fedavg", **options):
    settings = {"rounds": 1, "epochs": 1, "workers": 1, "lanes": "1", "name": "s", "folder": tmp_path}
    return unskew.run(method, check.federation(), **(settings | options))


@pytest.mark.parametrize("other", [{"seed": 1}, {"width": 5}, {"frozen": True}])
def test_another_module_does_not_continue_a_run(tmp_path, other):
    """Under a name that was taken, any module gave the first module's result, or went on from its checkpoint."""
    before = run(tmp_path, model=module())
    assert run(tmp_path, model=module()).digest == before.digest
    with pytest.raises(StateError, match="E112 the model given here is not the one"):
        run(tmp_path, model=module(**other))


def test_another_part_of_the_same_name_does_not_continue_a_run(tmp_path):
    """A Part with the same name and settings, but of another source, was taken for the first one."""
    before = run(tmp_path, first_kind()(), model="mlp")
    assert run(tmp_path, first_kind()(), model="mlp").digest == before.digest
    with pytest.raises(StateError, match="E112 the Part 'own' given here is not the one"):
        run(tmp_path, second_kind()(), model="mlp")


def test_a_part_called_like_one_of_ours_is_not_resumed_as_ours(tmp_path):
    """`resume` read the method's text alone, so that a user's own 'fedprox' went on as the built-in one."""

    @dataclass(frozen=True)
    class Own(Part):
        name = "fedrs"

    path = unskew.run(
        Own(), "digits", model="mlp", clients=3, samples=20, rounds=1, epochs=1, workers=1, name="s", folder=tmp_path
    ).path
    with pytest.raises(StateError, match=r"E118 .*the Part 'fedrs' given as an object"):
        unskew.resume(path)


def test_a_digest_is_of_what_a_module_computes():
    """Plain attributes that forward reads count; where an object lies in memory, and the mode, do not."""

    class Scaled(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.scale, self.head = scale, nn.Identity()

        def extra_repr(self) -> str:
            return repr(object())

    assert given.of_model(Scaled(1.0)) == given.of_model(Scaled(1.0).eval())
    assert given.of_model(Scaled(1.0)) != given.of_model(Scaled(2.0))


def test_settings_of_a_part_count():
    assert given.of_part(Mild()) == given.of_part(Mild())
    assert given.of_part(Mild()) != given.of_part(Mild(strength=2.0))
