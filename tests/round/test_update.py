"""Single steps of local training against the same steps computed by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from tests.round.training import LR, SEED, SIZES, build, linear, orders, trainer
from unskew.core.method import Method
from unskew.core.random_keys import key
from unskew.methods.fedmix import FedMix
from unskew.methods.norm import Norm

SHAPE = (2, 3, 1)
both = pytest.mark.parametrize("lanes", [1, 8])


@both
def test_dropout_scales_what_it_keeps_and_draws_for_real_samples_only(lanes):
    """20 samples: a batch of 16, and one of 4 that lanes pad to 8, twice. Kept values are over 1 - p."""
    p, module = 0.25, linear(6, nn.Dropout(0.25))
    clients, start = trainer(module, SHAPE, lanes=lanes, epochs=2, sizes=(20, 9))
    replies = clients.train(start, [0, 1], {})
    w, b = (start.weights[n].clone().requires_grad_() for n in ("2.weight", "2.bias"))
    numbers = key(SEED, 1, 0, "dropout")
    for rows in (piece for epoch in orders(clients, 0, 2) for piece in (epoch[:16], epoch[16:])):
        kept = torch.rand((len(rows), 6), generator=numbers) >= p
        x, y = clients.samples.x[rows].flatten(1), clients.samples.y[rows].argmax(1)
        gradients = torch.autograd.grad(F.cross_entropy((x * kept / (1 - p)) @ w.T + b, y), (w, b))
        w, b = ((t - LR * g).detach().requires_grad_() for t, g in zip((w, b), gradients))
    assert_close(replies[0].weights["2.weight"], w.detach(), rtol=0, atol=1e-6)
    assert_close(replies[0].weights["2.bias"], b.detach(), rtol=0, atol=1e-6)


@both
def test_the_reported_loss_is_the_mean_over_samples_and_epochs(lanes):
    """With a learning rate of 0 it is the loss of the weights that were sent, whatever the batches' sizes."""
    clients, start = trainer(build("mlp", SHAPE), SHAPE, lanes=lanes, lr=0.0)
    replies = clients.train(start, range(len(SIZES)), {})
    module = build("mlp", SHAPE)
    for reply in replies:
        rows = clients.samples.rows[reply.client]
        expected = F.cross_entropy(module(clients.samples.x[rows]), clients.samples.y[rows].argmax(1))
        assert float(reply.loss) == pytest.approx(expected.item(), rel=1e-5)


@both
def test_a_part_that_scales_inputs_scales_the_direction_of_a_slope(lanes):
    """FedMix then Norm: the slope is along what was mixed in, in the units of the inputs as they were."""
    mean, std, lam = (0.5, -1.0), (2.0, 0.25), 0.3
    method = Method(FedMix(lam=lam), Norm(mean=mean, std=std))
    clients, start = trainer(linear(6), SHAPE, method, lanes=lanes, epochs=1, sizes=(10, 12))
    other_x, other_y = torch.rand(SHAPE, generator=key("other")), torch.tensor([0.0, 0.5, 0.5, 0.0])
    start.down["fedmix"] = {"x": other_x[None], "y": other_y[None]}
    reply = clients.train(start, [0, 1], {})[0]
    (rows,) = orders(clients, 0)
    x, y = clients.samples.x[rows], clients.samples.y[rows]
    shift, scale = (torch.tensor(v).reshape(-1, 1, 1) for v in (mean, std))
    w, b = (start.weights[n].clone().requires_grad_() for n in ("2.weight", "2.bias"))
    step = torch.zeros((), requires_grad=True)

    def loss(targets):
        z = (((1 - lam) * x + step * other_x - shift) / scale).flatten(1) @ w.T + b
        return -(targets * z.log_softmax(1)).sum(1).mean()

    slope = torch.autograd.grad(loss((1 - lam) * y), step, create_graph=True)[0]
    total = loss((1 - lam) * y + lam * other_y) + lam * slope
    for name, t, g in zip(("2.weight", "2.bias"), (w, b), torch.autograd.grad(total, (w, b))):
        assert_close(reply.weights[name], (t - LR * g).detach(), rtol=0, atol=1e-6)
