"""What the engine relies on in every model: blocks, a head, nothing in place, and lanes by vmap."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from unskew import models
from unskew.core.keys import key
from unskew.engine.client.kernels import Kernels
from unskew.errors import UsageError
from unskew.models import catalogue, count
from unskew.models.blocks import Blocks

SHOWN = [(name, shape, classes) for name, shape, classes, _ in catalogue.SHOWN]
FOLDING = {"vae_fmnist", "vae_cifar", "mlp", "cnn_small", "rebafl_fmnist", "lenet", "rebafl_cifar"}
SMALL = [
    ("mlp", (1, 8, 8)),
    ("mlp(hidden=())", (5,)),
    ("cnn_small", (1, 8, 8)),
    ("lenet", (1, 28, 28)),
    ("rebafl_cifar", (3, 32, 32)),
    ("harnet", (1, 128, 3)),
    ("audionet", (2, 64, 40)),
    ("mobilenet_v2", (3, 16, 16)),
    ("resnet18", (3, 16, 16)),
    ("alexnet_bn(width=32)", (3, 64, 64)),
]


def made(name, shape, classes=3, what="m"):
    module = models.build(name, shape, classes)
    models.initialise(module, key(what))
    return module


@pytest.mark.parametrize(("name", "shape", "classes"), SHOWN)
def test_blocks_end_in_a_head_that_gets_a_vector(name, shape, classes):
    with torch.device("meta"):
        module = models.build(name, shape, classes)
        *blocks, last = [n for n, _ in module.named_children()]
        assert isinstance(module, Blocks)
        assert type(module).forward is nn.Sequential.forward
        assert last == "head"
        assert type(module.head) is nn.Linear
        assert module.cut in blocks
        assert module.folds is (name.split("(")[0] in FOLDING)
        assert count.shape_at(module, shape, blocks[-1]) == (module.head.in_features,)
        assert count.shape_at(module, shape, "head") == (classes,)


@pytest.mark.parametrize(("name", "shape", "classes"), SHOWN)
def test_nothing_is_in_place_and_pooling_comes_before_the_activation(name, shape, classes):
    with torch.device("meta"):
        module = models.build(name, shape, classes)
    assert not [n for n, m in module.named_modules() if getattr(m, "inplace", False)]
    for block in module.modules():
        if isinstance(block, nn.Sequential):
            for first, then in pairwise(block):
                assert not (isinstance(first, (nn.ReLU, nn.LeakyReLU)) and isinstance(then, nn.MaxPool2d))


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize(("name", "shape"), SMALL)
def test_vmap_over_stacked_weights_is_one_model_after_another(name, shape, kernels):
    both = [made(name, shape, what=i).eval() for i in range(2)]
    w, buffers = stack_module_state(both)
    structure = models.build(name, shape, 3).to("meta").eval()
    x = torch.rand(2, 3, *shape, generator=key("x"))

    def run(w, buffers, x):
        if not kernels:
            return functional_call(structure, (w, buffers), (x,))
        with Kernels(lanes=True):
            return functional_call(structure, (w, buffers), (x,))

    with torch.no_grad():
        found = vmap(run, randomness="error")(w, buffers, x)
        alone = torch.stack([module(rows) for module, rows in zip(both, x)])
    assert found.shape == (2, 3, 3)
    assert (alone[0] - alone[1]).abs().max() > 1e-4
    torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-5)


def test_options_stand_in_the_text_or_beside_it():
    assert models.build("mlp", (4,), 2, hidden=(3,)).fc1[0].out_features == 3
    assert models.build("mlp(hidden=(7,))", [4], 2).fc1[0].out_features == 7
    assert models.build("mlp(hidden=(7,))", (4,), 2, hidden=(3,)).fc1[0].out_features == 3
    assert models.build("rebafl_cifar", (3, 32, 32), 10, head_bias=False).head.bias is None


@pytest.mark.parametrize(
    ("text", "shape", "told"),
    [
        ("mlp(64)", (4,), "E104 .*key=value"),
        ("mlp(hidden=(3,))(5)", (4,), "E104 .*key=value"),
        ("mlp(hidden=(3,)) + 2", (4,), "E104 .*key=value"),
        ("mlp(hidden=", (4,), "E104"),
        ("alexnet_bn(stem='tiny')", (3, 64, 64), "E104 .*auto, imagenet or small"),
        ("alexnet_bn(stem='imagenet')", (3, 62, 62), "E122 .*at least 63x63"),
        ("alexnet_bn", (3, 47, 64), "E122 .*at least 48x48"),
        ("alexnet_bn", (12,), "E122"),
        ("audionet", (64, 344), "E122 .*channels, mels, frames"),
        ("lenet", (1, 8, 8), "E122 .*28, 28"),
    ],
)
def test_options_and_samples_that_do_not_fit_are_refused(text, shape, told):
    with pytest.raises(UsageError, match=told):
        models.build(text, shape, 3)


@pytest.mark.parametrize("side", [48, 64, 128, 159, 160])
def test_alexnet_fits_sizes_between_the_digits_and_imagenet(side):
    with torch.device("meta"):
        models.check(models.build("alexnet_bn(width=8)", (3, side, side), 10), (3, side, side), 10)
        if side >= 64:
            module = models.build("alexnet_bn(width=8, stem='imagenet')", (3, side, side), 10)
            models.check(module, (3, side, side), 10)


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((1, 128, 3), "harnet"),
        ((2, 64, 344), "audionet"),
        ((1, 28, 28), "rebafl_fmnist"),
        ((3, 32, 32), "rebafl_cifar"),
        ((3, 64, 64), "alexnet_bn(width=1024)"),
        ((1, 64, 87), "audionet"),
        ((1, 64, 32), "audionet"),
        ((1, 64, 64), "alexnet_bn(width=1024)"),
        ((1, 8, 8), "cnn_small"),
        ((561,), "mlp"),
        ((3, 2), "mlp"),
    ],
)
def test_auto_fits_the_sample(shape, name):
    assert models.default_for(shape) == name
    with torch.device("meta"):
        module = models.build("auto", shape, 5)
        assert count.parameters(module) == count.parameters(models.build(name, shape, 5))
        models.check(module, shape, 5)


def test_names_are_what_can_be_built():
    assert models.names() == list(models.describe())
    shown = {name.split("(")[0] for name, *_ in (*catalogue.SHOWN, *catalogue.WITH_MASKS)}
    assert set(models.names()) == shown | {"lenet"}
    assert count.parameters(models.build("lenet", (1, 28, 28), 10)) == 117_066


def test_the_page_of_models_holds_the_numbers_of_the_table():
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    rows = {(r.name, r.shape): r for r in catalogue.rows()}
    shown = re.findall(r"^\| `(.+?)` \| ([\d×]+) \| (\d+) \| ([\d,]+) \| ([\d,]+) \| `(\w+)` ([\d×]+) \|", page, re.M)
    for name, shape, *numbers in shown:
        r = rows[name, tuple(map(int, shape.split("×")))]
        cut = "×".join(map(str, r.cut_shape))
        assert numbers == [str(r.classes), f"{r.parameters:,}", f"{r.multiply_adds:,}", r.cut, cut]
    assert {name.split("(")[0] for name, *_ in shown} == set(models.names()) - {"lenet"}


def test_the_table_of_models():
    lines = models.table().splitlines()
    assert len(lines) == 2 + len(catalogue.SHOWN) + len(catalogue.WITH_MASKS)
    assert {line.count("|") for line in lines} == {10}
    assert (
        "| `harnet` | 1×128×3 | 6 | 691,974 | 35,874,624 | `conv2` 128×20×7 | 17,920 | 8,448 "
        "| Xia et al., KDD 2024 (FLea), public code |" in lines
    )


def test_multiply_adds_of_grouped_and_one_dimensional_layers():
    grouped = nn.Sequential(nn.Conv2d(4, 8, 3, 2, 1, groups=4), nn.BatchNorm2d(8))
    assert count.multiply_adds(grouped, (4, 6, 6)) == 8 * 9 * 9  # 8 channels, 3x3 places, 3x3 weights of one channel
    assert count.multiply_adds(nn.Conv1d(2, 3, 5), (2, 9)) == 3 * 5 * 10


def test_counting_leaves_every_layer_in_its_mode():
    module = models.build("resnet18", (3, 16, 16), 3).train()
    module.stem.eval()
    before = [m.training for m in module.modules()]
    count.multiply_adds(module, (3, 16, 16))
    models.check(module, (3, 16, 16), 3)
    assert [m.training for m in module.modules()] == before
    assert not module.head._forward_hooks


def test_parameters_below_a_block_that_is_not_there():
    module = models.build("mlp", (4,), 2)
    with pytest.raises(KeyError):
        count.below(module, "fc9")
    with pytest.raises(KeyError):
        count.shape_at(module, (4,), "fc9")
