"""FedMask by hand, what it refuses, and what hostile or odd replies do to it.

Likeliest mistakes of users: naming it before a Part that changes the model, a model without a layer that can
have a mask, and weights that begin at 0 as those of adapters do.
Worst things a client could send: bits for weights that it does not have, other bits than there are, a claim
to have kept all.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import unskew
from tests.fixtures import assert_close
from unskew.core.replies import Reply, Ups
from unskew.errors import UsageError
from unskew.methods.fedmask import (
    FedMask,
    MaskedConv2d,
    MaskedLinear,
    binarise,
    largest,
    layers_without_masks,
    norms,
    with_masks,
)

A, B = "a.fedmask", "b.fedmask"
FED = SimpleNamespace(
    net=SimpleNamespace(trainable=(A, "a.bias", B), extra={"other.a.fedmask": 0}),
    shared=(A, B),
    clients=2,
    batch=2,
)
PART = FedMask(start=0.5, layers=1)


def ups(*bits):
    """Of each client, its bits of A and of B; weights are real-valued masks."""
    replies = [
        Reply(k, 1.0, {n: torch.where(torch.tensor(v) > 0, 0.1, -0.1) for n, v in zip((A, B), pair)})
        for k, pair in enumerate(bits)
    ]
    return Ups.of(replies, 1, "equal").seen_by("fedmask")


def test_bits_are_averaged_over_those_that_have_them_as_in_figure_8():
    """A is everybody's; of B each client has a part of its own, and of its last element nobody has
    anything."""
    w = {A: torch.full((9,), 0.5), B: torch.tensor([0.5, 0.5, 0.5, 0.25])}
    s = {"kept": {B: torch.tensor([[True, True, False, False], [True, False, True, False]])}}
    i = ([1, 1, 1, 0, 1, 1, 0, 1, 0], [1, 0, 0, 0])
    j = ([1, 1, 0, 1, 0, 1, 0, 1, 1], [0, 1, 1, 1])
    after, _ = PART.merge(w, s, ups(i, j), FED)
    assert (after[A] > 0).int().tolist() == [1, 1, 0, 0, 0, 1, 0, 1, 0]
    # a tie, i's alone, j's alone, and as it was; j's bit of i's is no vote
    assert_close(after[B], [-0.5, -0.5, 0.5, 0.25])


def test_a_client_is_sent_the_common_mask_cut_to_what_it_kept():
    w, kept = (
        {A: torch.tensor([0.5, -0.5]), B: torch.tensor([0.5, -0.5])},
        torch.tensor([[False, True], [True, False]]),
    )
    sent, down = PART.dispatch(w, {"kept": {B: kept}}, 0, FED)
    assert sent[A] is w[A]
    assert sent[B].tolist() == [-200, -0.5]
    assert down == {}
    assert PART.dispatch(w, {}, 0, FED)[0] == w


def test_a_mask_travels_as_bits_and_arrives_as_a_mask_to_begin_with():
    w = {A: torch.tensor([0.5, 0.5, -0.5]), B: torch.tensor([[0.5], [-200.0]])}
    change = {A: torch.tensor([0.0, -0.6, 0.5]), B: torch.tensor([[-0.4], [3.0]])}
    fed = SimpleNamespace(shared=(A, B), net=SimpleNamespace(weights=lambda: w))
    tree, mine = PART.encode(change, SimpleNamespace(start=w), None)
    assert tree["bits"].tolist() == [0b01101]
    assert mine == {}
    assert PART.encoded(fed)["bits"].shape == (1,)
    back = PART.decode(tree, w, fed, None)
    assert_close(w[A] + back[A], [0.5, -0.5, 0.5])
    assert_close(w[B] + back[B], [[0.5], [-0.5]])


def test_the_bit_is_a_step_and_its_slope_the_sigmoid_s():
    r = torch.tensor([0.0, 2.0, -1e-9, -200.0], requires_grad=True)
    m = binarise(r)
    m.backward(torch.tensor([4.0, 1.0, 4.0, 1e30]))
    assert m.tolist() == [1, 1, 0, 0]
    assert_close(r.grad, [1.0, 0.1049936, 1.0, 0.0])


def test_whole_rows_and_columns_are_pulled_to_0():
    m = torch.tensor([[1.0, 1], [1, 0], [0, 0]], requires_grad=True)
    total = norms(m)
    assert float(total.detach()) == pytest.approx(2**0.5 + 1 + 2**0.5 + 1, abs=1e-5)
    total.backward()
    assert_close(m.grad, [[2**0.5, 1 + 2**-0.5], [1 + 2**-0.5, 0.0], [0.0, 0.0]])


def test_the_largest_share_and_at_least_one():
    assert largest(torch.tensor([[3.0, 1], [2, 0]]), 0.5).tolist() == [[True, False], [True, False]]
    assert largest(torch.tensor([1.0, 1, 1]), 0.01).tolist() == [True, False, False]


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


def test_a_frozen_layer_gets_no_mask():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[0].weight.requires_grad_(False)
    assert [type(t) for t in with_masks(module, 0.1, 1.0)] == [nn.Linear, MaskedLinear]


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


def test_the_server_takes_down_what_each_client_kept_and_nothing_where_nobody_answered():
    fed = SimpleNamespace(
        **vars(FED)
        | {
            "net": SimpleNamespace(trainable=(B,), extra={}, initial={B: torch.ones(1, 2)}),
            "shared": (B,),
            "sizes": [1, 1],
        }
    )
    part = FedMask(start=0.5, layers=1, keep=0.5)
    told = torch.tensor([[0b01], [0b10]], dtype=torch.uint8)
    up = Ups.of([Reply(k, 1.0, {}, {"fedmask": {"kept": told[k]}}) for k in range(2)], 0).seen_by("fedmask")
    w = {B: torch.full((1, 2), 0.5)}
    _, s = part.collect(w, part.server_init(w, fed), up, fed)
    assert s["kept"][B].tolist() == [[[True, False]], [[False, True]]]
    assert part.structure(fed)["kept"].shape == (1,)
    assert part.collect(w, s, Ups.of([], 0).seen_by("fedmask"), fed) == (w, s)
