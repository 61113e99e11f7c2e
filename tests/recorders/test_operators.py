"""Recorded operators give what the function gives, for other values at the same addresses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.recorders import operators
from unskew.recorders.operators import Operators

Function = Callable[[Tensor, Tensor], None]


def views_and_changes(x: Tensor, y: Tensor) -> None:
    h = x.t().reshape(-1)[::2].clone()
    h.mul_(2).clamp_(max=1.5)
    y.view(-1)[:8] += h[:8] * torch.arange(8)
    z = (x * y).unsqueeze_(0)
    y.sub_(z.squeeze_(0).t_().sum(0)[:, None], alpha=0.1)
    y.t()[0] = torch.relu(x[:, 0] - 0.5) + torch.ones(6).sum()


def gradients(x: Tensor, y: Tensor) -> None:
    w = y.detach().requires_grad_()
    loss = F.cross_entropy(torch.tanh(x.t() @ w), x.argmax(0) % 4)
    (g,) = torch.autograd.grad(loss, w)
    y.sub_(g, alpha=0.1)


def side_by_side(x: Tensor, y: Tensor) -> None:
    def loss(w: Tensor, x: Tensor) -> Tensor:
        return (F.softmax(w * x, 0) * torch.tensor(2.0)).amax()

    y.copy_(torch.func.vmap(torch.func.grad(loss))(y, x))


def memory_that_is_filled(x: Tensor, y: Tensor) -> None:
    h = torch.empty(6, 8)
    h[:, :4], h[:, 4:] = x, torch.zeros_like(x)
    y += h.sum(1, keepdim=True) + torch.cat([x, y], 1).cumsum(1)[:, -1:]


def large_results(x: Tensor, y: Tensor) -> None:
    """Of operators that return memory of their own, read through views, changed and differentiated."""
    images = F.pad(x.flatten(), (0, 1000)).reshape(1, 1, 32, 32).expand(8, 3, 32, 32).contiguous()
    kernel = y.sum().expand(16, 3, 3, 3).clone().requires_grad_()
    h = F.conv2d(images, kernel).flatten(1)
    (g,) = torch.autograd.grad(F.max_pool1d(h.relu()[:, 10:], 2).square().mean(), kernel)
    y.add_(g[:6, 0, 0, :1]).add_(h.detach().unflatten(1, (4, -1))[:6, :, 0], alpha=1e-3)


FUNCTIONS = [views_and_changes, gradients, side_by_side, memory_that_is_filled, large_results]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_a_replay_equals_a_call(function: Function):
    g = torch.Generator().manual_seed(1)
    x, y = torch.rand(6, 4, generator=g), torch.rand(6, 4, generator=g)
    expected = y.clone()
    function(x, expected)
    replay = Operators().record(lambda: function(x, y))
    assert not isinstance(replay, str), replay
    assert torch.equal(y, expected)
    for _ in range(3):
        x.copy_(torch.rand(6, 4, generator=g))
        expected = y.clone()
        function(x, expected)
        replay()
        assert torch.equal(y, expected)


def test_only_what_reaches_older_tensors_is_repeated():
    x, y = torch.rand(4), torch.zeros(4)

    def function() -> None:
        unused = x.exp().sum()
        constants = torch.arange(4).float() * 2
        y.copy_((x.view(2, 2).detach().flatten() + constants) * 1.5 + unused.detach().new_ones(4))

    replay = Operators().record(function)
    assert isinstance(replay, operators.Replay)
    assert len(replay.runs) == 4  # two sums, a product, the copy


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x.add_(float(x.sum())), "_local_scalar_dense"),
        (lambda x: x.add_(torch.rand(4)), "rand"),
        (lambda x: x.add_(x[x > 0].sum()), "index"),
        (lambda x: x.add_(x.numpy().sum()), "Tensor.numpy"),
        (lambda x: x.add_(x.to_sparse().to_dense()), "ordinary"),
    ],
)
def test_what_depends_on_values_is_not_recorded(function: Callable[[Tensor], None], reason: str):
    x = torch.tensor([1.0, 2.0, -1.0, 4.0])
    before = x.clone()
    result = Operators().record(lambda: function(x))
    assert isinstance(result, str)
    assert reason in result
    assert not torch.equal(x, before)  # it was called


def test_an_untraced_call_is_made_anew_in_every_replay():
    recorder, y, rate = Operators(), torch.zeros(2), [1.0]
    replay = recorder.record(
        lambda: recorder.untraced(lambda to, by: to.add_(by, alpha=rate[0]), y, torch.ones(2) * 3)
    )
    assert not isinstance(replay, str)
    rate[0] = 10.0
    replay()
    assert y.tolist() == [33.0, 33.0]
