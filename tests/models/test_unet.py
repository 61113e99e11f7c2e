"""U-Net: the papers' size, its cuts, and a forward pass written out."""

from __future__ import annotations

import pytest
import torch

from unskew import models
from unskew.core.network import Network
from unskew.core.random_keys import key
from unskew.errors import UsageError
from unskew.round.layer_kernels import Kernels, use_kernels

SMALL, SHAPE = "unet(base=4, levels=3)", (1, 16, 12)


def made(text=SMALL, shape=SHAPE, what="u"):
    module = models.build(text, shape, 2, shape[1:])
    assert models.initialise(module, key(what)) == []
    return module


def test_cuts():
    net = Network(made(), SHAPE)
    assert net.head == "head"
    assert net.cuts("maps") == ("pool1", "pool2", "bottleneck")
    assert [net.shape_at(c) for c in net.cuts("maps")] == [(4, 8, 6), (8, 4, 3), (16, 4, 3)]
    assert net.check_cut("cut") == "bottleneck"
    with pytest.raises(UsageError, match=r"E104 .*no cut 'pool4'"):
        net.check_cut("pool4")
    w, x, seen = net.weights(), torch.rand(2, *SHAPE, generator=key("x")), {}

    def double(cut, h):
        seen[cut] = h
        return 2 * h

    with torch.no_grad():
        plain = net.run(w, x)[0]
        changed = net.run(w, x, taps={"bottleneck": double})[0]
        assert torch.equal(net.run(w, x, until="bottleneck")[0], seen["bottleneck"])
        assert torch.equal(net.module_with(w)(x), plain)
        assert torch.equal(net.head_of(w, net.features_of(w, x)), plain)
    assert not torch.allclose(plain, changed)
    with pytest.raises(UsageError, match="E104 a pass cannot go on from 'pool1' alone"):
        net.run(w, seen["bottleneck"], since="pool1")


@pytest.mark.parametrize("training", [False, True])
def test_lanes_equal_one_after_another(training):
    net, g = Network(made(), SHAPE), key("lanes")
    w = net.weights()
    many = {
        n: torch.stack([t + 0.1 * torch.rand(t.shape, generator=g) for _ in range(3)]) for n, t in w.items()
    }
    x = torch.rand(3, 5, *SHAPE, generator=g)
    with torch.no_grad(), use_kernels(net, Kernels(folded=True)):
        found = torch.func.vmap(lambda w, x: net.run(w, x, train=training)[0])(
            {n: t.clone() for n, t in many.items()}, x
        )
    for k in range(3):
        own = {n: t[k].clone() for n, t in many.items()}
        with torch.no_grad(), use_kernels(net, Kernels(folded=False)):
            torch.testing.assert_close(found[k], net.run(own, x[k], train=training)[0], rtol=0, atol=1e-4)


def test_a_model_whose_answers_are_not_the_labels_is_refused():
    with pytest.raises(UsageError, match="E123 model 'unet' gives one answer per pixel, but each sample"):
        models.build("unet(levels=2)", (1, 16, 16), 3)
    with pytest.raises(UsageError, match="E123 model 'cnn_small' gives one answer per sample"):
        models.build("cnn_small", (1, 16, 16), 3, pixels=(16, 16))
