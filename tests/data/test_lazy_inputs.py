"""Samples with several inputs that memory does not hold: each input stays where it lies, and they train to
the bits that they have in memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unskew
from unskew import data
from unskew.data.readers import from_npz
from unskew.data.storage.rows_on_disk import is_streamed
from unskew.errors import DataError

N = 36
RNG = np.random.default_rng(6)
SCANS = RNG.integers(0, 256, (N, 1, 8, 8), dtype=np.uint8)
SCANS[7] = SCANS[30]
AGES, IDS = RNG.normal(size=N).astype(np.float32), RNG.integers(0, 50, (N, 6))
Y = np.arange(N) % 2
INPUTS = {"scan": SCANS, "age": AGES, "ids": IDS}
SETTINGS = {"skew": "dirichlet:0.5", "clients": 3, "rounds": 2, "epochs": 1, "batch": 8, "workers": 1}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.body, self.head = nn.Embedding(50, 2), nn.Linear(64 + 1 + 12, 8), nn.Linear(8, 2)

    def forward(self, scan: Tensor, age: Tensor, ids: Tensor) -> Tensor:
        flat = [scan.flatten(1), age[:, None], self.table(ids).flatten(1)]
        return self.head(self.body(torch.cat(flat, 1)).relu())


class Items:
    def __init__(self, rows: range = range(N)):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Any:
        row = self.rows[i]
        return {name: values[row] for name, values in INPUTS.items()}, int(Y[row])


@pytest.fixture
def little(monkeypatch):
    """What leaves this process with little memory; files are large then."""

    def make(memory: int = 1000) -> None:
        monkeypatch.setattr("unskew.data.storage.rows_on_disk.usable_memory", lambda: memory)
        for module in ("samples.conversion", "samples.packing"):
            monkeypatch.setattr(f"unskew.data.{module}.LARGE", 100)

    return make


def mapped(path):
    for name, values in INPUTS.items():
        np.save(path / f"{name}.npy", values)
    return {name: path / f"{name}.npy" for name in INPUTS}


FORMS = {
    "arrays in memory": lambda path: (INPUTS, Y),
    "files of .npy": lambda path: data.arrays(mapped(path), Y),
    "some in files": lambda path: ({**INPUTS, "scan": np.load(mapped(path)["scan"], mmap_mode="r")}, Y),
    "a Dataset": lambda path: Items(),
}


@pytest.fixture(scope="module")
def theirs():
    """A run with all samples in memory."""
    return unskew.run("standardise+scaffold", data.take((INPUTS, Y)), model=Net(), **SETTINGS)


@pytest.mark.parametrize("form", FORMS)
def test_inputs_that_memory_does_not_hold_train_to_the_same_bits(form, theirs, tmp_path, little):
    whole = data.take((INPUTS, Y))
    little()
    read = data.take(FORMS[form](tmp_path))
    assert is_streamed(read.x)
    assert read.layout == whole.layout
    assert np.array_equal(read.x[:], whole.x)
    assert np.array_equal(read.x_test[:], whole.x_test)
    assert any(text.startswith("samples are read when they are wanted") for _, text in read.intake.notes)
    if form != "arrays in memory":
        ours = unskew.run("standardise+scaffold", read, model=Net(), **SETTINGS)
        assert (ours.digest, ours.scores()) == (theirs.digest, theirs.scores())
    from_npz.save_dataset(read, tmp_path / "data.npz")
    assert np.array_equal(data.read(tmp_path / "data.npz").x[:], whole.x)


def test_clients_may_have_too_many_together(little):
    half = range(0, N, 2), range(1, N, 2)
    clients = {name: Items(rows) for name, rows in zip(("north", "south"), half)}
    theirs = unskew.run("fedavg", clients, model=Net(), rounds=1, epochs=1, batch=8)
    little(30_000)  # each fits, and both together do not
    ours = unskew.run("fedavg", clients, model=Net(), rounds=1, epochs=1, batch=8)
    assert is_streamed(ours.federation.x)
    assert ours.digest == theirs.digest


def test_tokens_may_have_a_label_each(little):
    labels = np.where(np.arange(6) < 4, IDS % 3, -100)
    given = {"ids": IDS, "present": IDS > 10}
    whole = data.arrays(given, labels)
    little()
    read = data.arrays(given, labels)
    assert is_streamed(read.x)
    assert read.tokens
    assert np.array_equal(read.y, whole.y)
    with pytest.raises(DataError, match="E404"):
        data.arrays(given, labels[:, :4])
