"""The compact form of HARNet is the same function, with the same gradients and statistics."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from unskew import models
from unskew.core.network import Network
from unskew.round.layer_kernels import Kernels, use_kernels


def harnet():
    module = models.build("harnet", (1, 128, 3), 6).double()
    models.initialise(module, torch.Generator().manual_seed(3))
    return module


def plainly(module, x, train):
    module.train(train)
    return module(x)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("train", [True, False])
def test_values_gradients_and_statistics(train, fast):
    module, x = harnet(), torch.randn(5, 1, 128, 3, dtype=torch.float64)
    net = Network(module, (1, 128, 3))
    w = {n: t.clone() for n, t in net.weights().items()}
    learned = [w[n].requires_grad_() for n in net.trainable]
    with use_kernels(net, Kernels(folded=False)) if fast else nullcontext():
        z, features = net.run(w, x, train=train)
    wanted = plainly(module, x, train)
    torch.testing.assert_close(z, wanted, rtol=0, atol=1e-10)
    assert features.shape == (5, 8448)
    found = torch.autograd.grad(z.pow(2).sum(), learned)
    expected = torch.autograd.grad(wanted.pow(2).sum(), list(module.parameters()))
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)
    for n, buffer in module.named_buffers():
        if n in w:
            torch.testing.assert_close(w[n], buffer, rtol=0, atol=1e-10)


def test_cut_and_on_from_a_cut():
    module, x = harnet().eval(), torch.randn(4, 1, 128, 3, dtype=torch.float64)
    net = Network(module, (1, 128, 3))
    h = net.run(net.weights(), x, until="conv2")[0]
    assert h.shape == (4, 128, 20, 7)
    torch.testing.assert_close(h, module.conv2(module.conv1(x)), rtol=0, atol=1e-12)
    noisy = h + torch.randn_like(h)  # every column now depends on the sample
    wanted = module.head(module.flat(module.conv4(module.conv3(noisy))))
    torch.testing.assert_close(net.run(net.weights(), noisy, since="conv2")[0], wanted, rtol=0, atol=1e-10)
    tapped = net.run(net.weights(), x, taps={"conv2": lambda _, h: noisy})[0]
    torch.testing.assert_close(tapped, wanted, rtol=0, atol=1e-10)


def test_padding_of_a_short_batch_counts_nowhere():
    net, x = Network(harnet(), (1, 128, 3)), torch.randn(3, 1, 128, 3, dtype=torch.float64)
    ends = []
    for rows, weight in ((x, None), (torch.cat([x, 9 * x[:2]]), torch.tensor([1.0, 1, 1, 0, 0]).double())):
        w, kernels = {n: t.clone() for n, t in net.weights().items()}, Kernels(folded=False)
        kernels.padded = weight is not None
        with use_kernels(net, kernels), kernels.training(weight, ()):
            z = net.run(w, rows, train=True)[0][:3]
        ends.append((z, w["conv3.1.running_var"], w["conv1.1.running_mean"]))
    for a, b in zip(*ends):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
