"""What layers run as while a model trains: equal to torch's own, to the bit where that is promised."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unskew.round.layer_kernels import Kernels

RECTIFIERS = [
    nn.ReLU(),
    nn.ReLU6(),
    nn.LeakyReLU(0.2),
    F.relu,
    torch.relu,
    Tensor.relu,
    F.relu6,
    F.leaky_relu,
]


def gradients(function: Callable, x: Tensor, kernels: Kernels | None) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    if kernels is None:
        y = function(x)
    else:
        with kernels:
            y = function(x)
    (g,) = torch.autograd.grad(y, x, torch.arange(y.numel(), dtype=torch.float32).reshape(y.shape))
    return y.detach(), g


def pictures() -> Tensor:
    """With ties, plateaus of every rectifier and zeros of both signs."""
    x = torch.randn(3, 8, 9, 9, generator=torch.Generator().manual_seed(0))
    x[0, :, :4] = x[0, :, :4].sign() * 7
    x[1, :2], x[1, 2:4], x[2, 0] = 0.0, -0.0, -1.0
    return x


@pytest.mark.parametrize("rectify", RECTIFIERS)
@pytest.mark.parametrize(
    "pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1), lambda t: F.max_pool2d(t, 2, stride=1)]
)
def test_a_rectifier_before_pooling_has_torchs_bits(rectify, pool):
    ours = gradients(lambda x: pool(rectify(x)), pictures(), Kernels(folded=False))
    theirs = gradients(lambda x: pool(rectify(x)), pictures(), None)
    assert torch.equal(ours[0], theirs[0])
    if "eaky" in str(rectify):  # windows that overlap add up its slopes in another order
        torch.testing.assert_close(ours[1], theirs[1])
    else:
        assert torch.equal(ours[1], theirs[1])


@pytest.mark.parametrize(
    "pool",
    [
        *(nn.MaxPool2d(2), nn.MaxPool2d(3, 2), nn.MaxPool2d((2, 3), 1), nn.MaxPool2d(3, 2, 1)),
        *(nn.MaxPool2d(2, ceil_mode=True), nn.MaxPool2d(2, dilation=2), nn.MaxPool2d(9)),
        lambda t: nn.MaxPool1d(4, 3)(t.flatten(2)),
        lambda t: F.max_pool2d(t.contiguous(memory_format=torch.channels_last), 2),
        lambda t: F.max_pool2d(t, 2, return_indices=True)[1],
    ],
)
def test_pooling_without_gradients_has_torchs_bits_and_layout(pool):
    x = pictures()
    x[0, 0, 4, 4] = torch.nan
    with torch.no_grad(), Kernels(folded=False):
        ours = pool(x)
    theirs = pool(x)
    assert torch.equal(ours.nan_to_num(9.0), theirs.nan_to_num(9.0))
    assert ours.stride() == theirs.stride()


def changed(x: Tensor) -> Tensor:
    y = F.leaky_relu(x)  # torch's own relu cannot be changed in place
    y += 1
    return F.max_pool2d(y, 2)


def changed_by_a_view(x: Tensor) -> Tensor:
    y = F.leaky_relu(x)
    y[:, 0] *= -1
    return F.max_pool2d(y, 2)


def used_twice(x: Tensor) -> Tensor:
    y = F.relu(x)
    return F.max_pool2d(y, 2) + y[..., :4, :4] * 3


def of_another(x: Tensor) -> Tensor:
    F.relu(x - 1)
    return F.max_pool2d(x, 2)


@pytest.mark.parametrize("function", [changed, changed_by_a_view, used_twice, of_another])
def test_a_rectifiers_answer_that_something_else_uses_or_changes_keeps_its_meaning(function):
    ours = gradients(function, pictures(), Kernels(folded=False))
    theirs = gradients(function, pictures(), None)
    assert torch.equal(ours[0], theirs[0])
    torch.testing.assert_close(ours[1], theirs[1])


IN_PLACE = [
    lambda t: F.relu(t, inplace=True),
    lambda t: F.relu6(t, inplace=True),
    lambda t: F.hardtanh(t, inplace=True),
    lambda t: F.leaky_relu(t, 0.2, inplace=True),
]


@pytest.mark.parametrize("rectify", IN_PLACE)
def test_what_a_rectifier_changes_in_place_is_changed_for_whoever_goes_on_with_it(rectify):
    def shortcut(x: Tensor) -> Tensor:
        h = x + 1
        y = F.max_pool2d(rectify(h), 2)
        return y + F.avg_pool2d(h, 2)

    ours = gradients(shortcut, pictures(), Kernels(folded=False))
    theirs = gradients(shortcut, pictures(), None)
    assert torch.equal(ours[0], theirs[0])
    torch.testing.assert_close(ours[1], theirs[1])
    x_BG = torch.stack([pictures(), -pictures()], 1)
    with Kernels(folded=True):
        found = torch.func.vmap(shortcut, in_dims=1)(x_BG)
    torch.testing.assert_close(found, torch.stack([shortcut(x_BG[:, g]) for g in range(2)]))


def test_layers_take_their_input_by_its_name():
    x, w, w1 = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4, 3, 3)
    with Kernels(folded=False):
        found = torch.relu(input=torch.conv2d(input=x, weight=w)), torch.conv1d(input=x[:, :, 0], weight=w1)
    torch.testing.assert_close(found, (torch.relu(torch.conv2d(x, w)), torch.conv1d(x[:, :, 0], w1)))


def test_clients_side_by_side_pool_what_each_would_alone():
    layers = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    x_BG = torch.stack([pictures(), pictures().flip(0), -pictures()], 1)

    def loss(x: Tensor) -> Tensor:
        return (layers(x) ** 2).sum()

    with Kernels(folded=True):
        x = x_BG.clone().requires_grad_()
        torch.func.vmap(loss, in_dims=1)(x).sum().backward()
    for g in range(3):
        alone = x_BG[:, g].clone().requires_grad_()
        loss(alone).backward()
        assert x.grad is not None
        assert alone.grad is not None
        assert torch.equal(x.grad[:, g], alone.grad)


ALONG_TIME = [
    nn.Conv1d(4, 6, 5, padding=2),
    nn.Conv1d(4, 6, 3, stride=2, dilation=2, groups=2, bias=False),
    nn.Conv1d(4, 6, 3, padding="same"),
    nn.Conv1d(4, 6, 3, padding="valid"),
    nn.MaxPool1d(2),
    nn.MaxPool1d(3, 2, 1, ceil_mode=True),
    nn.MaxPool1d(2, dilation=2),
    nn.Sequential(nn.Conv1d(4, 6, 3, padding="same"), nn.ReLU(), nn.MaxPool1d(2)),
]


@pytest.mark.parametrize("layer", ALONG_TIME, ids=str)
@pytest.mark.parametrize("lanes", [1, 3])
def test_layers_along_time_do_what_torchs_do(layer: nn.Module, lanes: int):
    x_BG = torch.randn(2, lanes, 4, 17, generator=torch.Generator().manual_seed(1))
    expected = torch.stack([gradients(layer, x_BG[:, g], None)[1] for g in range(lanes)], 1)
    if lanes == 1:
        found = gradients(layer, x_BG[:, 0], Kernels(folded=False))[1].unsqueeze(1)
    else:
        x = x_BG.clone().requires_grad_()
        with Kernels(folded=True):
            y = torch.func.vmap(layer, in_dims=1)(x)
        each = torch.arange(y[0].numel(), dtype=torch.float32).reshape(y[0].shape)
        (found,) = torch.autograd.grad(y, x, each.expand(y.shape))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
