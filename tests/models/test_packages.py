"""Models that torchvision and timm build: by name alone, without weights, checked as a user's own are.

The packages are replaced by stand-ins with the functions of theirs that are called, as their documentation
describes them, so that these tests need neither.
"""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

import unskew
from unskew import models
from unskew.errors import UsageError
from unskew.federation.site.study_review import check_model
from unskew.records.checkpoints import digest

Y = np.arange(48) % 3
X = (0.2 * np.random.default_rng(0).random((48, 3, 8, 8)) + 0.2 * Y[:, None, None, None]).astype(np.float32)
RUN = {"skew": "iid", "clients": 3, "rounds": 2, "epochs": 1, "batch": 8, "device": "cpu", "workers": 1}


class Small(nn.Module):
    """What image models have: batch normalisation, a ReLU that works in place, initial weights by a rule of
    their own, and a block that training passes by at random."""

    def __init__(self, channels: int, classes: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, 8, 3, bias=False)
        self.bn, self.relu = nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        self.token, self.fc = nn.Parameter(torch.randn(8)), nn.Linear(8, classes)
        nn.init.trunc_normal_(self.fc.weight, std=0.02)

    def forward(self, x):
        kept = torch.rand(len(x), 1) > 0.1 if self.training else 1.0
        return self.fc(self.relu(self.bn(self.conv(x))).mean((2, 3)) * kept + self.token)


@pytest.fixture
def calls(monkeypatch):
    """The arguments with which the stand-ins were asked for a model."""
    asked = []

    def get_model(name, **config):
        asked.append((name, config))
        return Small(3, config["num_classes"])

    def create_model(name, pretrained=True, **config):
        if "img_size" in config and name != "vit_small":
            raise TypeError("__init__() got an unexpected keyword argument 'img_size'")
        asked.append((name, {"pretrained": pretrained, **config}))
        return Small(config["in_chans"], config["num_classes"])

    torchvision, timm = ModuleType("torchvision"), ModuleType("timm")
    torchvision.models = ModuleType("torchvision.models")
    classifiers, others = ["small", "vit_small"], ["detector"]
    torchvision.models.list_models = lambda module=None: classifiers if module else classifiers + others
    torchvision.models.get_model = get_model
    timm.list_models, timm.create_model = lambda: ["small", "vit_small"], create_model
    for module in (torchvision, torchvision.models, timm):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return asked


@pytest.mark.parametrize("text", ["torchvision(name=small)", "timm(name=small)"])
def test_the_bits_of_the_same_module_from_a_function(calls, text):
    named = unskew.run("fedavg", (X, Y), model=text, **RUN)
    own = unskew.run("fedavg", (X, Y), model=lambda shape, classes: Small(3, classes), **RUN)
    assert named.digest == own.digest
    assert type(named.model) is Small


def test_no_weights_and_the_size_where_a_model_needs_it(calls):
    for text in ("torchvision(name=vit_small)", "timm(name=vit_small)", "timm(name=small)"):
        models.build(text, (3, 8, 8), 3)
    (_, of_torchvision), (_, with_size), (_, without) = calls
    assert of_torchvision == {"weights": None, "num_classes": 3, "image_size": 8}
    assert with_size == {"pretrained": False, "num_classes": 3, "in_chans": 3, "img_size": (8, 8)}
    assert without == {"pretrained": False, "num_classes": 3, "in_chans": 3}


def test_grey_images_get_a_first_convolution_of_one_channel(calls):
    for text in ("torchvision(name=small)", "timm(name=small)"):
        assert models.build(text, (1, 8, 8), 3)(torch.zeros(2, 1, 8, 8)).shape == (2, 3)


@pytest.mark.parametrize(
    "text",
    [
        "torchvision(name=detector)",
        "torchvision",
        "timm(name='hf-hub:somebody/small')",
        "timm(name=small.tag)",
    ],
)
def test_a_name_that_is_not_in_the_package_s_list_builds_nothing(calls, text):
    with pytest.raises(UsageError, match=r"E104 \w+ has no \w+ '.*'; write one as"):
        models.build(text, (3, 8, 8), 3)
    assert not calls


@pytest.mark.parametrize("package", ["torchvision", "timm"])
def test_a_package_that_is_missing_is_named(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=f"E133 .*pip install {package}"):
        unskew.run("fedavg", (X, Y), model=f"{package}(name=small)", **RUN)


def test_a_run_is_loaded_by_the_name_alone(calls, tmp_path):
    result = unskew.run("fedavg", (X, Y), model="timm(name=small)", name="named", folder=tmp_path, **RUN)
    assert np.array_equal(unskew.load(tmp_path / "named").predict(X), result.predict(X))


@pytest.mark.usefixtures("few_attempts")
def test_sites_build_what_a_study_names_and_end_with_the_simulator_s_bits(calls, tmp_path):
    """No operator has to allow it: the name is checked against the package's list where it is built."""
    from tests.federation import fake

    settings = fake.small("fedavg", model="torchvision(name=small)", rounds=1)
    channel = fake.Direct(fake.sites(tmp_path / "sites", fake.federation()))
    _, state, _ = fake.run(tmp_path / "run", channel, settings)
    left = {n: v for n, v in settings.as_dict().items() if n not in ("method", "data")}
    assert digest(state.weights) == unskew.run("fedavg", fake.federation(), **left).digest
    study = settings.replace(model="torchvision(name=detector)")
    with pytest.raises(UsageError, match="E104 torchvision has no classifier 'detector'"):
        check_model(study, fake.data_of(fake.federation(), 0))
