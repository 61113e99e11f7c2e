"""What the engine relies on in every model: blocks, a head, nothing in place, and lanes by vmap."""

from __future__ import annotations

import inspect
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from unskew import models
from unskew.core.keys import key
from unskew.errors import UsageError
from unskew.formats import arguments, calls
from unskew.models import catalogue, count, docs_page, networks
from unskew.models.blocks import Blocks
from unskew.models.registry import maker_of, module_of
from unskew.round.layers import Kernels

SHOWN = [
    (calls.call_text(name, example.arguments), example.shape, example.classes)
    for name in catalogue.files()
    for example in module_of(name).EXAMPLES
    if not example.masks
]
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
        with Kernels(folded=True):
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
        ("mlp(hidden=", (4,), "E104"),
        (
            "alexnet_bn(stem='tiny')",
            (3, 64, 64),
            "E104 model 'alexnet_bn': stem must be 'auto' or 'imagenet' or 'small'; got 'tiny'",
        ),
        ("mlp(hidden=(0,))", (4,), "E104 model 'mlp': hidden must be a list of whole numbers, each above 0"),
        ("mlp(hiden=(3,))", (4,), "E104 model 'mlp' has no argument 'hiden'.*Did you mean 'hidden'"),
        ("vae_cifar(dropout=1)", (3, 32, 32), "E104 .*dropout must be a number, at least 0, below 1; got 1"),
        ("audionet", (64, 344), "E123 .*channels, mels, frames"),
        ("lenet", (1, 8, 8), "E123 .*28, 28"),
    ],
)
def test_options_and_samples_that_do_not_fit_are_refused(text, shape, told):
    with pytest.raises(UsageError, match=told):
        models.build(text, shape, 3)


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
        ((1, 48, 48), "alexnet_bn(width=1024)"),
        ((1, 47, 48), "cnn_small"),
        ((3, 64, 87), "alexnet_bn(width=1024)"),
        ((1, 64, 15), "cnn_small"),
        ((1, 8, 8), "cnn_small"),
        ((1, 4, 4), "cnn_small"),
        ((1, 3, 4), "mlp"),
        ((561,), "mlp"),
        ((3, 2), "mlp"),
    ],
)
def test_auto_fits_the_sample(shape, name):
    assert models.default_for(shape) == name
    with torch.device("meta"):
        module = models.build("auto", shape, 5)
        assert count.parameters(module) == count.parameters(models.build(name, shape, 5))
        models.check_module(module, shape, 5)


def test_auto_answers_at_every_pixel_and_knows_no_model_for_every_token():
    assert models.default_for((3, 32, 32), (32, 32)) == "unet"
    with pytest.raises(
        UsageError, match=r"E123 no model that comes with unskew answers at every token; .*hf\(path=FOLDER\)"
    ):
        models.default_for((12,), (12,))


def test_names_are_the_files_and_their_aliases():
    files = {path.stem for path in catalogue.FOLDER.glob("*.py")} - {"__init__"}
    assert set(models.names()) == files | {"lenet"}
    assert list(models.describe()) == list(models.names())
    assert models.describe()["alexnet_bn"].endswith("; width=4096, stem='auto'")
    assert models.describe()["lenet"] == "another name for rebafl_fmnist"
    assert count.parameters(models.build("lenet", (1, 28, 28), 10)) == 117_066


def test_a_new_model_is_one_file(tmp_path, monkeypatch):
    """A copy of a file under another name can be listed, built, and appears in both tables of the docs."""
    for path in catalogue.FOLDER.glob("*.py"):
        (tmp_path / path.name).write_text(path.read_text())
    (tmp_path / "mine.py").write_text((tmp_path / "mlp.py").read_text().replace("def mlp(", "def mine("))
    monkeypatch.setattr(catalogue, "FOLDER", tmp_path)
    monkeypatch.setattr(networks, "__path__", [str(tmp_path)])
    for cached in (catalogue.files, catalogue.aliases):
        cached.cache_clear()
    try:
        assert models.describe()["mine"] == "A dense network for samples of any shape; hidden=(128,)"
        assert models.build("mine(hidden=(3,))", (4,), 2).fc1[0].out_features == 3
        assert "| `mine` | 1×28×28 | 10 | 101,770 |" in docs_page.page()
        assert "| `mine` | `hidden` | list of whole numbers |" in docs_page.page()
    finally:
        for cached in (catalogue.files, catalogue.aliases):
            cached.cache_clear()
        sys.modules.pop("unskew.models.networks.mine", None)
        vars(networks).pop("mine", None)


@pytest.mark.parametrize("name", catalogue.files())
def test_every_argument_has_a_meaning_and_a_default_in_its_range(name):
    taken = arguments.of(maker_of(name))
    assert [a.name for a in taken] == [*inspect.signature(maker_of(name)).parameters][2:]
    for argument in taken:
        assert argument.meaning
        assert argument.convert(argument.default) == argument.default


def test_the_page_of_models():
    text = docs_page.page()
    assert text == (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    assert (
        "| `harnet` | 1×128×3 | 6 | 691,974 | 35,874,624 | `conv2` 128×20×7 | 17,920 | 8,448 "
        "| Xia et al., KDD 2024 (FLea), public code |\n" in text
    )
    assert "| `unet` | 3×384×384 | 2 | 7,763,074 |" in text
    assert (
        "| `unet` | `levels` | whole number | at least 2, at most 16 | `5` | levels, the bottleneck"
        " included |" in text
    )


def test_multiply_adds_of_grouped_and_one_dimensional_layers():
    grouped = nn.Sequential(nn.Conv2d(4, 8, 3, 2, 1, groups=4), nn.BatchNorm2d(8))
    assert (
        count.multiply_adds(grouped, (4, 6, 6)) == 8 * 9 * 9
    )  # 8 channels, 3x3 places, 3x3 weights of one channel
    assert count.multiply_adds(nn.Conv1d(2, 3, 5), (2, 9)) == 3 * 5 * 10
