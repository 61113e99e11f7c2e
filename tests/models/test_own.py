"""A user's own model: every way it can be wrong is told in a sentence."""

from __future__ import annotations

import sys
from collections import OrderedDict
from functools import partial

import pytest
import torch
from torch import nn

import unskew
from unskew import models
from unskew.errors import UsageError


@pytest.fixture
def file(tmp_path):
    def write(text, name="own.py"):
        (tmp_path / name).write_text("import torch\nfrom torch import nn\n" + text)
        return str(tmp_path / name)

    return write


def test_a_class_serves_as_the_function(file):
    at = file(
        "from dataclasses import dataclass\n\n@dataclass\nclass Size:\n    wide: int = 3\n\n"
        "class Net(nn.Module):\n    def __init__(self, shape, classes):\n        super().__init__()\n"
        "        self.out = nn.Linear(shape[0] * Size().wide, classes)\n"
        "    def forward(self, x):\n        return self.out(torch.cat([x] * Size().wide, 1))"
    )
    assert models.from_file(f"{at}:Net", (4,), 2).out.in_features == 12


def test_further_arguments_of_the_function_stand_in_the_text(file):
    at = file(
        "def make(shape, classes, wide: int = 3):\n    return nn.Sequential(nn.Linear(4, wide),"
        " nn.Linear(wide, 2))"
    )
    assert models.from_file(f"{at}:make(wide=5)", (4,), 2)[0].out_features == 5
    with pytest.raises(UsageError, match=r"E104 .* has no argument 'width'; it takes wide\."):
        models.from_file(f"{at}:make(width=5)", (4,), 2)
    with pytest.raises(UsageError, match=r"E104 .*wide must be a whole number; got 0\.5"):
        models.from_file(f"{at}:make(wide=0.5)", (4,), 2)
    with pytest.raises(UsageError, match=r"E104 .*names no function; write .*own.py:function\."):
        models.from_file(at, (4,), 2)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def make(:", "E111 .*SyntaxError"),
        ("import no_such_module_anywhere", "E111 .*No module named"),
        ("def make(shape, classes, wide=3): ...", "E123 .*got NoneType"),
        ("def make(shape): ...", "E123 .*fails when called with"),
    ],
)
def test_files_that_cannot_serve(file, text, told):
    with pytest.raises(UsageError, match=told):
        models.from_file(f"{file(text)}:make", (4,), 2)
    if "E111" in told:
        assert "unskew_own_own" not in sys.modules


class Fails(nn.Module):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, x):
        raise self.error


class Gives(nn.Module):
    def __init__(self, found):
        super().__init__()
        self.found = found

    def forward(self, x):
        return self.found


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (Fails(AttributeError("no such part")), "AttributeError: no such part"),
        (Gives((torch.zeros(2, 2),)), "gives tuple for two samples"),
        (Gives(torch.zeros(2, 2, 1)), r"gives \[2, 2, 1\] for two samples; expected \[2, 2\]"),
        (nn.Linear, r"Linear is a class, not a module; create it first: Linear\("),
    ],
)
def test_modules_that_give_no_logits(module, told):
    with pytest.raises(UsageError, match=f"E123 .*{told}"):
        models.check_module(module, (4,), 2)


class Output(OrderedDict):
    """As models of Hugging Face return it: a mapping with its entries as attributes."""

    @property
    def logits(self):
        return self["logits"]


class Named(nn.Module):
    """A model that returns more than its logits, and computes with its own output's name."""

    def __init__(self, features: int = 64):
        super().__init__()
        self.body, self.head = nn.Linear(features, 6), nn.Linear(6, 10)

    def forward(self, x):
        h = self.body(x.flatten(1)).relu()
        return Output(hidden_states=h, logits=self.head(h))


class Alone(Named):
    def forward(self, x):
        return super().forward(x).logits


def made(kind, shape, classes):
    return kind()


def test_a_model_that_names_its_logits_trains_as_one_that_returns_them_alone(tmp_path):
    ends = []
    for maker in (Named, Alone):
        options = {"clients": 3, "rounds": 2, "samples": 90, "device": "cpu", "workers": 1}
        ends.append(unskew.run("flea", "digits", model=partial(made, maker), **options))
    named, alone = ends
    assert named.digest == alone.digest
    assert isinstance(named.model(torch.zeros(2, 1, 8, 8)), Output)  # the user's own module, as it was
    assert named.export(tmp_path / "out")  # which tries what it has written


class LightningModule(nn.Module):
    """As lightning's: known by its name, since that package need not be installed."""


class Lit(LightningModule, Alone):
    def training_step(self, batch, index):
        raise AssertionError("it is called")


def test_of_a_lightning_module_the_forward_is_trained_and_a_remark_says_so():
    options = {"clients": 3, "rounds": 1, "samples": 60, "device": "cpu", "workers": 1}
    result = unskew.run("fedavg", "digits", model=Lit(), **options)
    (remark,) = [e["text"] for e in result.record.rows["events"] if e["code"] == "E128"]
    assert "of a LightningModule the forward alone is used" in remark


def test_checking_does_not_touch_the_statistics_or_the_modes():
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).train()
    module[1].eval()
    before = {n: t.clone() for n, t in module.state_dict().items()}
    assert models.check_module(module, (4,), 2) is module
    assert all(torch.equal(t, before[n]) for n, t in module.state_dict().items())
    assert [m.training for m in module] == [True, False, True]
