"""Attacks on samples with several inputs: each is recovered by itself, in its own units.

Likely mistakes: a row compared as one thing, in which ages in years outweigh a scan; ages compared as they
were scaled; an attack that is named though it cannot be made.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unskew
from tests.attacks.test_reconstruct import of
from tests.cli.calling import call
from unskew.attacks import inversion
from unskew.attacks.kinds.context import Context
from unskew.attacks.kinds.gradient import Gradient
from unskew.attacks.kinds.reconstruct import Reconstruct
from unskew.attacks.scene import Scene
from unskew.report.page import write_report
from unskew.runs.reopen import UserCode

N = 300
RNG = np.random.default_rng(2)
Y = RNG.integers(0, 3, N)
SCANS = RNG.random((N, 1, 8, 8)).astype(np.float32)
AGES = (60 + 10 * RNG.normal(size=N)).astype(np.float32)
PARTS = {"_train": slice(0, 120), "_test": slice(120, N)}
GIVEN = {"scan": SCANS, "age": AGES, "sex": RNG.integers(0, 2, N), "ward": np.ones(N, np.float32)}
"""Of these inputs the ward is the same in all samples."""


NET = """
import torch
from torch import nn

class Wide(nn.Module):
    def __init__(self, shapes, classes, width=100, sees=1.0):
        super().__init__()
        self.body, self.head, self.sees = nn.Linear(67, width), nn.Linear(width, classes), sees

    def forward(self, scan, age, sex, ward):
        return self.head(self.body(torch.cat([scan.flatten(1), torch.stack([self.sees * age, sex, ward], 1)], 1)))

class Coded(Wide):
    def forward(self, scan, age, sex, ward):
        return super().forward(scan, age, nn.functional.one_hot(sex, 2)[:, 1], ward)

class CutOff(Wide):
    def forward(self, scan, age, sex, ward):
        return super().forward(scan, age, sex.long(), ward)

class Looks(Wide):
    def __init__(self, shapes, classes):
        super().__init__(shapes, classes)
        self.sexes = nn.Embedding(2, 1)

    def forward(self, scan, age, sex, ward):
        return super().forward(scan, age, self.sexes(sex)[:, 0], ward)

class Image(nn.Module):
    def __init__(self, shapes, classes):
        super().__init__()
        self.body, self.head = nn.Conv2d(1, 3, 3, stride=2), nn.Linear(27, classes)

    def forward(self, scan):
        return self.head(self.body(scan).flatten(1))
"""


def scene(folder: Path, given: Any, model: str, method: str = "flea(alpha=0.5)") -> Scene:
    """Of a finished run: 120 samples to train on, the others for the test."""
    inputs = {f".{n}": v for n, v in given.items()} if isinstance(given, dict) else {"": given}
    folder.mkdir()
    parts = {f"x{part}{n}": v[rows] for n, v in inputs.items() for part, rows in PARTS.items()}
    np.savez(folder / "s.npz", **parts, **{f"y{part}": Y[rows] for part, rows in PARTS.items()})
    (folder / "net.py").write_text(NET)
    settings = {"clients": 3, "rounds": 2, "epochs": 1, "batch": 10, "workers": 1, "skew": "iid", "lr": 0.001}
    data, net = str(folder / "s.npz"), f"{folder / 'net.py'}:{model}"
    unskew.run(method, data, model=net, folder=folder, name="r", **settings)
    return Scene(folder / "r", code=UserCode(None, net))


@pytest.fixture
def attacked(tmp_path):
    """Makes scenes, and closes them."""
    made: list[Scene] = []

    def of_these(*given: Any) -> Scene:
        made.append(scene(tmp_path / str(len(made)), *given))
        return made[-1]

    yield of_these
    for each in made:
        each.close()


def test_pieces_are_the_inputs_in_their_shapes():
    layout = unskew.data.arrays(GIVEN, Y).layout
    x = torch.arange(2 * 67.0).reshape(2, 67)
    found = inversion.pieces(layout, x)
    assert {n: tuple(t.shape) for n, t in found.items()} == {
        "age": (2, 1), "scan": (2, 1, 8, 8), "sex": (2, 1), "ward": (2, 1)
    }  # fmt: skip
    assert torch.equal(found["scan"].flatten(1), x[:, 1:65])
    assert inversion.pieces(None, x) == {"": x}
    assert inversion.image_of(layout, (67,), 8) == (1, 65, (1, 8, 8))
    assert inversion.image_of(layout, (67,), 9) is None
    assert inversion.image_of(None, (3, 9, 9), 9) == (0, 0, (3, 9, 9))
    assert inversion.image_of(None, (67,), 1) is None


def test_every_input_is_recovered_by_itself_in_its_own_units(attacked):
    found = {
        (s.of, s.metric): (s.value, s.floor)
        for s in Reconstruct(steps=30).attempt(attacked(GIVEN, "Wide"), 0).scores
    }
    assert {of.partition(": ")[0] for of, _ in found} == {"age", "scan", "sex"}  # everybody knows the ward
    for name, variance in (("age", AGES.var()), ("scan", SCANS.var()), ("sex", GIVEN["sex"].var())):
        left, without = found[f"{name}: linear decoder", "MSE"]
        assert without == pytest.approx(variance, rel=0.35)
        assert left < 0.01 * without
    assert ("scan: linear decoder", "SSIM") in found
    assert ("age: linear decoder", "SSIM") not in found


def test_a_mark_on_the_first_image_that_it_fits_into_is_found(attacked):
    made = attacked(GIVEN, "Wide")
    assert of(made, Context(own=(100,), steps=100))["100 own samples", "accuracy"] > 0.9
    assert "does not fit into samples of shape age float32 number, scan float32" in (
        Context(marker=7).refuse(made) or ""
    )


def test_only_attacks_that_can_be_made_are_named(attacked):
    path = attacked(GIVEN, "Wide", "rebafl").path
    with_it = "--data", str(path.parent / "s.npz"), "--model", f"{path.parent / 'net.py'}:Wide"
    shown = call("explain", "rebafl", *with_it).out
    assert "measure it: unskew attack RUN gradient, unskew attack RUN membership, unskew audit RUN)" in shown
    assert "unskew attack RUN prototype" not in shown
    assert "unskew attack RUN prototype" in call("explain", "rebafl").out
    assert (
        "measure it: unskew attack RUN context, unskew attack RUN reconstruct)"
        in call("explain", "flea", *with_it).out
    )
    page = write_report([path], path / "page.html").read_text()
    assert f"unskew attack {path} gradient" in page
    assert f"unskew attack {path} prototype" not in page


def test_an_update_gives_every_input_back_in_its_own_unit(attacked):
    """The model is linear, and its first weights tell most; a whole number moves like any other."""
    made = attacked(GIVEN, "Wide", "fedavg")
    results = {
        (s.of.partition(": ")[0], s.metric): s
        for s in Gradient(samples=6, at="first").attempt(made, 0).scores
    }
    assert {of for of, metric in results if metric == "MSE"} == {"age", "scan", "sex"}
    for name, variance in (("age", AGES.var()), ("scan", SCANS.var()), ("sex", GIVEN["sex"].var())):
        score = results[name, "MSE"]
        assert score.value < 0.15 * score.floor
        assert 0.2 * variance < score.floor < 4 * variance
    assert results["scan", "SSIM"].value > 0.9
