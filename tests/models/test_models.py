"""Sizes of the papers' models, their cuts, and initial weights from a generator alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from unskew import models
from unskew.core.network import Network
from unskew.core.random_keys import key
from unskew.errors import UsageError
from unskew.models.blocks import Blocks


def size_of(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


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


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (lambda: models.build("harnett", (1, 128, 3), 6), "Did you mean 'harnet'"),
        (lambda: models.build("harnet", (1, 8, 8), 6), r"E123 .*of \[1, 128, 3\], got \[1, 8, 8\]"),
        (lambda: models.build("mlp(hiden=3)", (4,), 2), "E104"),
        (lambda: models.check_module(nn.Linear(4, 7), (4,), 2), r"gives \[2, 7\] for .*; expected \[2, 2\]"),
        (lambda: models.check_module(nn.Linear(5, 2), (4,), 2), "E123 the model fails"),
        (lambda: models.from_file("nowhere.py:make", (4,), 2), "there is no file"),
        (lambda: Network(models.build("mlp", (4,), 2), (4,)).check_cut("fc9"), "E104"),
    ],
)
def test_models_that_do_not_fit_are_refused(act, told):
    with pytest.raises(UsageError, match=told):
        act()


PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
SHOWN = [
    [cell.strip("` ") for cell in line.split("|")[1:6]]
    for line in PAGE.partition("## Models by name")[2].partition("## Arguments")[0].splitlines()
    if line.startswith("| `")
]
"""(model, sample, classes, parameters, default cut) of each row of the page."""
FOLDING = {"vae_fmnist", "vae_cifar", "mlp", "cnn_small", "rebafl_fmnist", "rebafl_cifar"}


@pytest.mark.parametrize(("name", "sample", "classes", "parameters", "cut"), SHOWN)
def test_a_model_is_as_the_page_says_and_its_head_gets_a_vector(name, sample, classes, parameters, cut):
    shape = tuple(map(int, sample.split("×")))
    with torch.device("meta"):
        module = models.build(name, shape, int(classes), shape[1:] if name == "unet" else ())
        assert f"{size_of(module):,}" == parameters
        block, h = cut.split("` ")
        assert module.cut == block
    if name == "unet":
        return
    last = [n for n, _ in module.named_children()][-1]
    assert isinstance(module, Blocks)
    assert type(module).forward is nn.Sequential.forward
    assert last == "head"
    assert type(module.head) is nn.Linear
    assert module.folds is (name.split("(")[0] in FOLDING)
    with torch.device("meta"):
        net = Network(module, shape)
        assert net.shape_at(block) == tuple(map(int, h.split("×")))
        assert net.shape_at("features") == (module.head.in_features,)


FITTING = {
    "harnet": [(1, 128, 3)],
    "audionet": [(2, 64, 344), (1, 64, 87), (1, 64, 32)],
    "rebafl_fmnist": [(1, 28, 28)],
    "rebafl_cifar": [(3, 32, 32)],
    "alexnet_bn(width=1024)": [(3, 64, 64), (1, 64, 64), (1, 48, 48), (3, 64, 87)],
    "cnn_small": [(1, 47, 48), (1, 64, 15), (1, 8, 8), (1, 4, 4)],
    "mlp": [(1, 3, 4), (561,), (3, 2)],
}


@pytest.mark.parametrize("name", FITTING)
def test_auto_fits_the_sample(name):
    for shape in FITTING[name]:
        assert models.default_for(shape) == name
        with torch.device("meta"):
            module = models.build("auto", shape, 5)
            assert size_of(module) == size_of(models.build(name, shape, 5))
            models.check_module(module, shape, 5)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("mobilenet_v2", (3, 32, 32)), ("resnet18", (3, 64, 64)), ("rebafl_cifar", (3, 32, 32)), ("mlp", (6,))],
)
def test_the_same_bits_as_pytorch_gives_from_that_seed(name, shape):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        theirs = models.build(name, shape, 10)
        torch.manual_seed(8)
        ours = models.build(name, shape, 10)
        state = torch.get_rng_state()
        models.initialise(ours, torch.Generator().manual_seed(7))
        assert torch.equal(torch.get_rng_state(), state)  # the global generator was not touched
    assert all(
        torch.equal(a, b)
        for a, b in zip(theirs.state_dict().values(), ours.state_dict().values(), strict=True)
    )


class Odd(nn.Module):
    """Holds a parameter of its own beside layers."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((3,), 5.0))
        self.words = nn.Embedding(4, 3)
        self.up = nn.ConvTranspose2d(3, 2, 2)


def test_layers_it_does_not_know_keep_their_values_and_are_named():
    module = Odd()
    before = {n: t.clone() for n, t in module.state_dict().items()}
    assert models.initialise(module, key("odd")) == ["", "words"]
    after = module.state_dict()
    assert torch.equal(after["scale"], before["scale"])
    assert torch.equal(after["words.weight"], before["words.weight"])
    assert not torch.equal(after["up.weight"], before["up.weight"])
