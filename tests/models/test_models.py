"""Sizes of the papers' models, their cuts, and initial weights from a generator alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unskew import models
from unskew.core.keys import key
from unskew.core.network import Network
from unskew.errors import UsageError
from unskew.models import count

SIZES = [
    ("mobilenet_v2", (3, 32, 32), 10, 2_296_922, 3_456, (16, 32, 32)),
    ("audionet", (2, 64, 344), 10, 25_602, 1_624, (16, 16, 86)),
    ("harnet", (1, 128, 3), 6, 691_974, 49_920, (128, 20, 7)),
    ("rebafl_cifar", (3, 32, 32), 10, 107_690, None, None),
    ("rebafl_cifar(head_bias=False)", (3, 32, 32), 10, 107_680, None, None),
    ("rebafl_fmnist", (1, 28, 28), 10, 117_066, None, None),
    ("alexnet_bn", (3, 256, 256), 10, 57_063_498, None, None),
    ("alexnet_bn(width=1024)", (3, 256, 256), 10, 12_974_154, None, None),
]


@pytest.mark.parametrize(("name", "shape", "classes", "size", "below", "cut"), SIZES)
def test_sizes_and_cuts(name, shape, classes, size, below, cut):
    module = models.build(name, shape, classes)
    assert count.parameters(module) == size
    if below:
        assert count.parameters_until(module, module.cut) == below
        assert Network(module, shape).shape_at("cut") == cut


ANY = [
    ("cnn_small", (1, 8, 8)),
    ("mlp", (5,)),
    ("resnet18", (3, 32, 32)),
    ("alexnet_bn(width=64)", (3, 64, 64)),
    ("audionet", (1, 64, 32)),
]


@pytest.mark.parametrize(("name", "shape"), ANY)
def test_running_in_pieces_is_running_whole(name, shape):
    module = models.build(name, shape, 3)
    models.initialise(module, key("m"))
    net, x = Network(module, shape), torch.rand(4, *shape, generator=key("x"))
    w = net.weights()
    with torch.no_grad():
        whole = module.eval()(x)
        assert torch.equal(net.run(w, x)[0], whole)
        for cut in net.blocks[:-1]:
            middle = net.run(w, x, until=cut)[0]
            assert torch.equal(net.run(w, middle, since=cut)[0], whole)
        assert torch.equal(net.head_of(w, net.features_of(w, x)), whole)
        assert torch.equal(net.module_with(w)(x), whole)


@pytest.mark.parametrize(("name", "shape"), ANY)
def test_initial_weights_come_from_the_generator_alone(name, shape):
    made = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        module = models.build(name, shape, 3)
        assert models.initialise(module, key("same")) == []
        made.append(Network(module, shape).weights())
    assert all(torch.equal(made[0][n], made[1][n]) for n in made[0])
    other = models.build(name, shape, 3)
    models.initialise(other, key("other"))
    assert not all(torch.equal(t, made[0][n]) for n, t in Network(other, shape).weights().items())


class Strange(nn.Module):
    """A user's module that is no Sequential."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.out = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        h = torch.relu(self.first(x))
        return self.out(torch.relu(self.second(h)) + h)


def test_any_module_can_be_cut_at_its_children():
    torch.manual_seed(0)
    module, x = Strange(), torch.rand(5, 4)
    net = Network(module, (4,))
    w = net.weights()
    assert net.head == "out"
    with torch.no_grad():
        whole = module(x)
        assert torch.equal(net.run(w, x)[0], whole)
        assert torch.equal(net.run(w, x, until="first")[0], module.first(x))
        assert torch.equal(net.run(w, module.first(x), since="first")[0], whole)
        assert torch.equal(net.head_of(w, net.features_of(w, x)), whole)
        doubled = net.run(w, x, taps={"first": lambda _, h: 2 * h})[0]
        h = torch.relu(2 * module.first(x))
        assert torch.allclose(doubled, module.out(torch.relu(module.second(h)) + h))


def test_batch_norm_names_are_found_by_type():
    made = nn.Sequential(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), nn.Flatten(), nn.Linear(72, 2))
    net = Network(made, (1, 8, 8))
    assert net.norms == {
        "0.1.weight",
        "0.1.bias",
        "0.1.running_mean",
        "0.1.running_var",
        "0.1.num_batches_tracked",
    }
    assert set(net.weights()) == {
        "0.0.weight",
        "0.0.bias",
        "0.1.weight",
        "0.1.bias",
        "0.1.running_mean",
        "0.1.running_var",
        "2.weight",
        "2.bias",
    }


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (lambda: models.build("harnett", (1, 128, 3), 6), "Did you mean 'harnet'"),
        (
            lambda: models.build("harnet", (1, 8, 8), 6),
            r"E123 .*needs samples of \[1, 128, 3\], got \[1, 8, 8\]",
        ),
        (lambda: models.build("mlp(hiden=3)", (4,), 2), "E104"),
        (
            lambda: models.check_module(nn.Linear(4, 7), (4,), 2),
            r"gives \[2, 7\] for two samples; expected \[2, 2\]",
        ),
        (lambda: models.check_module(nn.Linear(5, 2), (4,), 2), "E123 the model fails"),
        (lambda: models.from_file("nowhere.py:make", (4,), 2), "there is no file"),
        (lambda: Network(models.build("mlp", (4,), 2), (4,)).check_cut("fc9"), "E104"),
    ],
)
def test_models_that_do_not_fit_are_refused(act, told):
    with pytest.raises(UsageError, match=told):
        act()


def test_a_users_file(tmp_path):
    (tmp_path / "m.py").write_text(
        "from torch import nn\ndef make(shape, classes):\n    return nn.Sequential(nn.Linear(shape[0], 3),"
        " nn.Linear(3, classes))\n"
    )
    assert count.parameters(models.from_file(f"{tmp_path / 'm.py'}:make", (4,), 2)) == 15 + 8


def test_multiply_adds():
    assert (
        count.multiply_adds(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 5)), (1, 8, 8))
        == 2 * 36 * 9 + 360
    )
