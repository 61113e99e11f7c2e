"""FedMask by hand, what it refuses, and what hostile or odd replies do to it.

Likeliest mistakes of users: naming it before a Part that changes the model, a model without a layer that can
have a mask, and weights that begin at 0 as those of adapters do.
Worst things a client could send: bits for weights that it does not have, other bits than there are, a claim
to have kept all.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import unskew
from tests.fixtures import assert_close
from unskew.errors import UsageError
from unskew.methods.fedmask import (
    MaskedConv2d,
    MaskedLinear,
    layers_without_masks,
    with_masks,
)


def test_masks_lie_over_scaled_weights_and_the_module_stays_as_it_was():
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2, 2))
    before = module[2].weight.detach().clone()
    masked = with_masks(module, 0.1, 2.0)
    assert type(masked[0]) is MaskedConv2d
    assert type(masked[2]) is MaskedLinear
    assert type(module[2]) is nn.Linear
    assert torch.equal(masked[2].weight, 2 * before)
    assert torch.equal(module[2].weight, before)
    with torch.no_grad():
        masked[2].fedmask[0] = -1
    assert_close(masked(torch.ones(1, 1, 3, 3))[0, 0], module[2].bias[0].detach())
    assert not masked[2].fixed.requires_grad
    assert layers_without_masks(masked) == []
    assert layers_without_masks(module) == ["0", "2"]
    module.fresh = ("2",)  # a model that brings weights of its own
    assert torch.equal(with_masks(module, 0.1, 2.0)[2].weight, before)


class Rows(nn.Linear):
    """Of a class of its own, which no mask fits."""


def model(kind):
    layer = Rows(64, 10) if kind == "own" else nn.Linear(64, 10)
    if kind == "zero":
        nn.init.zeros_(layer.weight)
    return nn.Sequential(nn.Flatten(), layer) if kind else None


@pytest.mark.parametrize(
    ("method", "kind", "text"),
    [
        ("fedmask+moon", "", "another Part makes the layer 'projection.0' after it; name 'fedmask' last"),
        ("fedmask", "own", "nothing of this model is left to train: fedmask freezes all of it"),
        ("fedmask", "zero", "'1.fixed' begins at 0, where a mask changes nothing"),
        ("fedmask+fedfed", "", "clients send bits of masks alone, and 'fedfed.enc_a_w' is none"),
    ],
)
def test_what_it_cannot_work_with_is_refused_in_a_sentence(method, kind, text):
    with pytest.raises(UsageError) as info:
        unskew.run(method, "digits", model=model(kind) or "auto", clients=4, rounds=1)
    assert info.value.code == "E108"
    assert text in str(info.value)


def test_a_run_sends_a_bit_for_each_weight_and_never_moves_the_weights_themselves():
    settings = {"clients": 4, "skew": "iid", "samples": 20, "rounds": 2, "epochs": 1}
    runs = {
        rounds: unskew.run("fedmask(start=0.00001,layers=1)", "digits", **settings | {"rounds": rounds})
        for rounds in (1, 2)
    }
    masks = [n for n in runs[1].weights if n.endswith("fedmask")]
    D, pruned = sum(runs[1].weights[n].numel() for n in masks), runs[1].weights[masks[-1]].numel()
    assert runs[2].bytes("up") == 4 * (2 * -(-D // 8) + -(-pruned // 8))
    fixed = [n for n in runs[1].weights if n not in masks]
    assert fixed
    assert all(torch.equal(runs[1].weights[n], runs[2].weights[n]) for n in fixed)
    assert any(not torch.equal(runs[1].weights[n], runs[2].weights[n]) for n in masks)
