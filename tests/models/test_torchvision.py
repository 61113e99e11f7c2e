"""Models, sets and transforms of torchvision as its users bring them; skipped where it is not installed, as
in our own environments."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import unskew
from unskew.errors import UsageError

pytest.importorskip("torchvision", exc_type=ImportError)
from torchvision import datasets, models
from torchvision.transforms import v2

SETTINGS = {"clients": 3, "rounds": 1, "epochs": 1, "batch": 8, "workers": 1, "skew": "iid", "lr": 1e-3}
NETS = {
    "resnet18 with GroupNorm": lambda: models.resnet18(
        num_classes=4, norm_layer=lambda c: nn.GroupNorm(2, c)
    ),
    "mobilenet_v3_small": lambda: models.mobilenet_v3_small(num_classes=4),
    "squeezenet": lambda: models.squeezenet1_1(num_classes=4),
    "vit": lambda: models.VisionTransformer(32, 8, 2, 2, 32, 64, dropout=0.1, num_classes=4),
    "convnext": lambda: models.ConvNeXt([models.convnext.CNBlockConfig(8, None, 2)], 0.5, num_classes=4),
}


def images() -> datasets.FakeData:
    steps = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.5] * 3)]
    return datasets.FakeData(36, (3, 32, 32), 4, transform=v2.Compose(steps))


@pytest.mark.parametrize("net", NETS)
def test_models_train_alike_side_by_side_and_one_after_another(net):
    torch.manual_seed(0)
    model = NETS[net]()
    one, many = (
        unskew.run("fedavg", images(), model=model, lanes=lanes, **SETTINGS).model.state_dict()
        for lanes in ("1", "3")
    )
    assert any(not torch.equal(t, one[name]) for name, t in model.state_dict().items())
    for name, t in one.items():
        torch.testing.assert_close(many[name], t, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize("method", ["flea", "rebafl", "fedproto"])
def test_methods_find_features_and_cuts_in_them(method):
    model = NETS["resnet18 with GroupNorm"]()
    assert unskew.run(method, images(), model=model, **SETTINGS).run.task.name == "classification"


def test_auxiliary_answers_are_refused_with_what_to_do():
    net = models.googlenet(num_classes=4, init_weights=False)
    with pytest.raises(
        UsageError, match=r"E123 .*returns its answer as GoogLeNetOutputs.*return no auxiliary outputs"
    ):
        unskew.run("fedavg", images(), model=net, **SETTINGS)


def test_layers_that_draw_by_themselves_give_the_same_bits_again_and_in_several_processes():
    """Stochastic depth draws which samples pass a block by."""
    model = NETS["convnext"]()
    digests = {
        unskew.run("fedavg", images(), model=model, **{**SETTINGS, "workers": n}).digest for n in (1, 1, 2)
    }
    assert len(digests) == 1
    assert unskew.run("fedavg", images(), model=model, seed=1, **SETTINGS).digest not in digests
