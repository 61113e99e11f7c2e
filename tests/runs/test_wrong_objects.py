"""Objects in the wrong place, in a wrapper, or of a wrong kind: understood, or refused in one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pytest
import torch
from torch import nn

import unskew
from unskew.core import Part
from unskew.errors import UsageError
from unskew.methods.fedprox import FedProx

N = 30
X, Y = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32), np.arange(N) % 3
SETTINGS = {"rounds": 1, "epochs": 1, "clients": 2, "skew": "iid", "workers": 1}


class Net(nn.Module):
    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.first(x)).relu())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x[:, None])[0][:, -1])


class Wrapper(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def frozen_norm() -> Net:
    net = Net()
    net.norm.requires_grad_(False)
    return net


@dataclass(frozen=True)
class Mine(Part):
    strength: Annotated[float, "how much"] = 1.0
    name = "mine"


def run(method="fedavg", **options) -> unskew.Result:
    return unskew.run(method, (X, Y), **(SETTINGS | options))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: run(model=Net), r"E123 Net is a class.*Net\(\.\.\.\)"),
        (lambda: run(model=None), "E123 model is None; leave it out"),
        (lambda: run(model=torch.jit.script(Net())), r"E123 a module of torch\.jit"),
        (lambda: run(model=Net().double()), r"E123 .*are float64.*give model\.float\(\)"),
        (lambda: run(model=Net().half()), r"E123 .*are float16.*give model\.float\(\)"),
        (lambda: run(model=Net(10)), "E123 .*the labels have 3 classes"),
        (lambda: run(unskew.Scaffold), r"E102 Scaffold is a class, not a Part; write Scaffold\(\)"),
        (lambda: run(["fedavg", "flea"]), r"E102 .*unskew\.compare"),
        (lambda: run(Net()), "E102 a Net was given as method; give it as model"),
        (lambda: unskew.compare([unskew.Scaffold], (X, Y)), "E102 Scaffold is a class"),
        (lambda: Mine(strenght=2.0), "E102 Mine has no argument 'strenght'.*Did you mean 'strength'"),  # type: ignore[call-arg]
        (lambda: run("flea", model=Recurrent()), "E104 the model cannot be cut after 'rnn', which"),
        (lambda: run("flea", model=Wrapper(Net())), "E104 .*it has one child, 'inner'"),
        (lambda: run("fedbn", model=frozen_norm()), "E108 .*batch normalisation is frozen"),
        (lambda: run("feddpms", model="mlp"), r"E108 'feddpms' cannot run here.*a sample here is \[4\]"),
        (lambda: unskew.compare(["fedavg", "local"], (X, Y)), "E109 .*'local' is a reference"),
    ],
)
def test_a_wrong_object_is_one_sentence(call, says, tmp_path, monkeypatch):
    """Most were tracebacks; others did not say what was meant or where the number of classes came from."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=says):
        call()


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda net: torch.compile(net, backend="eager")])
def test_torchs_wrappers_are_taken_off(wrap):
    """`DataParallel` and `torch.compile` hid the model's blocks from every method that cuts it."""
    torch.manual_seed(0)
    net = Net()
    result = run("flea", model=wrap(net))
    assert result.model.state_dict().keys() == net.state_dict().keys()
    assert result.digest == run("flea", model=net).digest


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_a_run_trains_whatever_the_mode_around_it(mode):
    """In `torch.inference_mode()` a run was a traceback; in `torch.no_grad()` nothing was trained."""
    torch.manual_seed(0)
    net = Net()
    with mode():
        inside = run(model=net).digest
    assert inside == run(model=net).digest


@pytest.mark.parametrize("part", [3, None, "fedprox", [FedProx()], unskew.Method(FedProx()), FedProx])
def test_a_method_of_what_is_no_part_is_refused(part):
    """The check stood behind a look at `name`, so that all but classes ended in an AttributeError."""
    with pytest.raises(UsageError, match="E107 a Method is made of Parts, "):
        unskew.Method(FedProx(), part)
