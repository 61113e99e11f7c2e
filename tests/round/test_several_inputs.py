"""Samples of several inputs are trained on as those of one: the same bits, and nothing wrong in silence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unskew
from tests.cli.calling import call
from tests.samples import a_part_of
from unskew.core.network import Network
from unskew.errors import StateError, UnskewError, UsageError
from unskew.methods.catalogue import entries

N = 120
RNG = np.random.default_rng(7)
Y = np.arange(N) % 3
SCANS = (RNG.random((N, 1, 8, 8)) + 0.3 * Y[:, None, None, None]).astype(np.float32)
AGES = (RNG.normal(size=N) + Y).astype(np.float32)
IDS, PRESENT = (RNG.integers(0, 20, (N, 6)) + 5 * Y[:, None]), RNG.random((N, 6)) > 0.3
BY_NAME = {"scan": SCANS, "age": AGES}
SETTINGS = {
    "clients": 4,
    "rounds": 2,
    "epochs": 1,
    "batch": 8,
    "workers": 1,
    "skew": "dirichlet:1",
    "eval_every": 2,
}


class Scans(nn.Module):
    """A convolution of the scan, beside whose features the age is."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(1, 8, 3)
        self.body = nn.Linear(8 * 36 + 1, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, scan: Tensor, age: Tensor) -> Tensor:
        h = self.convolution(scan).relu().flatten(1)
        return self.head(self.body(torch.cat([h, age[:, None]], 1)).relu())


class Apart(Scans):
    """Lets the age by all of its layers but the last."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8 * 36, 16), nn.Linear(17, 3)

    def forward(self, scan: Tensor, age: Tensor) -> Tensor:
        h = self.body(self.convolution(scan).relu().flatten(1)).relu()
        return self.head(torch.cat([h, age[:, None]], 1))


class Row(Scans):
    """The same of one input, in which the age comes first."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, 1:].unflatten(1, (1, 8, 8)), x[:, 0])


class Words(nn.Module):
    """A language model as Hugging Face's are called, of whole numbers and truth values."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(40, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        assert (input_ids.dtype, attention_mask.dtype) == (torch.int64, torch.bool)
        count = attention_mask.sum(1, keepdim=True).clamp(min=1)
        return self.head((self.table(input_ids) * attention_mask[..., None]).sum(1) / count)


WORDS = {"input_ids": IDS, "attention_mask": PRESENT}


def trained(method: Any = "fedavg", given: Any = BY_NAME, model: nn.Module | None = None, **more: Any):
    return unskew.run(method, (given, Y), model=model or Scans(), **{**SETTINGS, **more})


FEW = {
    "clients": 3,
    "rounds": 2,
    "epochs": 1,
    "batch": 6,
    "workers": 1,
    "skew": "iid",
    "normalise": "none",
    "lanes": "4",
}
OTHERWISE = {
    "norm": "it has constants for the channels of images",
    "flea": "it finds a cut where all inputs meet, and hides each of them",
    "standardise": "it scales a scan as the channel it is",
    **dict.fromkeys(("fedrdn", "unskew"), "it normalises a scan as the image it is"),
    "augment": "it moves a scan as the image it is, and not a row",
}


FIRST = ("fedavg", "scaffold", "rebafl", "feddpms", "fedmix", "dpsgd")


@pytest.mark.parametrize("method", a_part_of(sorted(entries().keys() - OTHERWISE.keys()), 6, FIRST))
def test_every_method_has_the_bits_of_one_row_or_refuses_both(method):
    few = slice(0, 36)
    row = np.concatenate([AGES[few, None], SCANS[few].reshape(36, -1)], 1)
    several = {"scan": SCANS[few], "age": AGES[few]}
    said = []
    for given, model in ((several, Scans()), (row, Row())):
        try:
            said.append(unskew.run(method, (given, Y[few], given, Y[few]), model=model, **FEW).digest)
        except UnskewError as error:
            said.append(error.code)
    assert said[0] == said[1]


def test_a_module_sees_whole_numbers_and_truth_values_as_they_came():
    seen: list[tuple[Tensor, Tensor]] = []

    class Looks(Words):
        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            seen.append((input_ids, attention_mask))
            return super().forward(input_ids, attention_mask)

    net = Network(Looks(), (12,), layout=unskew.data.arrays(WORDS, Y).layout)
    rows = unskew.data.arrays(WORDS, Y, test=0).x
    net.run(net.weights(), torch.as_tensor(rows))
    assert torch.equal(seen[-1][0], torch.as_tensor(IDS))
    assert torch.equal(seen[-1][1], torch.as_tensor(PRESENT))
    assert net.embeds


class Stop(Exception):
    pass


def test_a_run_goes_on_to_the_same_bits_and_only_with_the_same_inputs(tmp_path):
    def stop(_: object, summary: Any) -> None:
        if summary.t == 1:
            raise Stop

    for folder in ("a", "b"):
        with pytest.raises(Stop):
            trained(folder=tmp_path / folder, name="r", shown=stop)
    assert trained(folder=tmp_path / "a", name="r").digest == trained().digest

    class Younger(Scans):
        def forward(self, scan: Tensor, years: Tensor) -> Tensor:
            return super().forward(scan, years)

    with pytest.raises(StateError, match="E112"):
        trained(given={"scan": SCANS, "years": AGES}, model=Younger(), folder=tmp_path / "b", name="r")


@pytest.mark.parametrize("lanes", ["1", "4"])
def test_a_whole_number_that_the_model_has_no_row_for_is_a_sentence(lanes):
    beyond = IDS.copy()
    beyond[-1, 2] = 40
    with pytest.raises(UsageError, match=r"E123 a sample holds a whole number for which an nn\.Embedding"):
        trained(given=WORDS | {"input_ids": beyond}, model=Words(), lanes=lanes)
    result = trained(given=WORDS, model=Words(), lanes=lanes)
    with pytest.raises(UsageError, match="numbers go from 0 to num_embeddings - 1"):
        result.predict(WORDS | {"input_ids": beyond})


MODULE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, shapes, classes):
        super().__init__()
        assert shapes == {"age": (), "scan": (1, 8, 8)}
        self.body, self.head = nn.Linear(65, 8), nn.Linear(8, classes)

    def forward(self, scan, age):
        return self.head(self.body(torch.cat([scan.flatten(1), age[:, None]], 1)).relu())
"""


def test_the_command_line_trains_and_predicts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "all.npz", **{"x.scan": SCANS, "x.age": AGES, "y": Y})
    np.savez(tmp_path / "new.npz", scan=SCANS[:3], age=AGES[:3])
    (tmp_path / "net.py").write_text(MODULE)
    checked = call("data", "check", "all.npz")
    assert "inputs   age float32 number" in checked.out
    ran = call(
        "run",
        "fedavg",
        "--data",
        "all.npz",
        "--model",
        "net.py:Net",
        "--rounds",
        "1",
        "--epochs",
        "1",
        "--clients",
        "2",
        "--workers",
        "1",
        "--name",
        "r",
    )
    assert ran.code == 0, ran.text
    answers = call("predict", "runs/r", "new.npz", "--model", "net.py:Net")
    assert len(answers.out.splitlines()) == 4, answers.text
    other = call("predict", "runs/r", "net.py", "--model", "net.py:Net")
    assert other.code == 2
    assert "E403 net.py is no .npz" in other.text


class Renamed(Scans):
    def forward(self, image: Tensor, age: Tensor) -> Tensor:
        return super().forward(image, age)


class Counts(nn.Module):
    """Computes with whole numbers, which a linear layer does not."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.head(input_ids)


@pytest.mark.parametrize(
    ("given", "model", "text"),
    [
        (BY_NAME, Renamed(), "E123 the model fails on two samples of age float32 .* keyword argument 'scan'"),
        ((SCANS, AGES, AGES), Scans(), "E123 the model fails .* takes 3 positional arguments but 4"),
        (WORDS, Counts(), "E123 the model fails on .* attention_mask bool .*Whole numbers come as int64"),
        (BY_NAME, "mlp", "E123 samples have several inputs .*the model 'mlp' takes one; give a module"),
        (SCANS, Scans(), "E123 the model fails on two samples of .*missing 1 required positional argument"),
    ],
    ids=range(5),
)
def test_a_model_that_does_not_take_the_inputs_is_refused(given, model, text):
    with pytest.raises(UsageError, match=text):
        unskew.run("fedavg", (given, Y), model=model, **SETTINGS)
