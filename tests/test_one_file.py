"""Something new is one new file: a method, a robust rule, a model, a data set, a measure, an attack and a
section of the report, each added to a copy of the package, are found by name, documented and used."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

METHOD = '''"""Halving (nobody, nowhere): half of every gradient.

Differs from the paper: there is none.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt

from unskew.core import Client, Part, Weights


@dataclass(frozen=True)
class Halving(Part):
    """Scales every gradient."""

    by: Annotated[float, Gt(0), "factor on the gradient"] = 0.5
    name = "halving"
    presets = {"halving_not": {"by": 1.0}}

    def grad(self, g: Weights, w: Weights, c: Client) -> Weights:
        return {n: self.by * t for n, t in g.items()}


class Helper:
    name = "helper"
'''

RULE = '''"""Largest (nobody, nowhere): the largest value of every weight.

Differs from the paper: there is none.
"""

from dataclasses import dataclass

from unskew.core import Fed, Part, Tree, Ups, Weights


@dataclass(frozen=True)
class Largest(Part):
    """Takes the largest value at every coordinate."""

    name = "largest"
    merges = True
    weights_read = "each"

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        return w | {n: ups.stack(n).amax(0) for n in ups.replies[0].weights}, s
'''

ATTACK = '''"""Guess: nothing is read, and everything guessed.

Differs from the paper: there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unskew.attacks.attack import Attack
from unskew.attacks.target_run import TargetRun
from unskew.attacks.attack import Outcome, Score

READS = ("w",)


@dataclass(frozen=True)
class Guess(Attack):
    """Guesses."""

    name: ClassVar[str] = "guess"
    adversary: ClassVar[str] = "anybody"

    def refuse(self, target: TargetRun) -> str | None:
        return None

    def attempt(self, target: TargetRun, seed: int) -> Outcome:
        return Outcome((Score("w", "a guess", "accuracy", 0.5, 0.4, 0.6, 0.5, 1.0, len(target.sent), True),), "none")
'''

SECTION = '''"""How many runs there are."""

from __future__ import annotations

from markupsafe import Markup

from unskew.report.sections import Context
from unskew.report.sections import Section

ORDER = 12345


def build(context: Context) -> Section:
    """One sentence."""
    return Section("A new section", "new", Markup("<p>counted</p>"))
'''


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the package, compiled files and all."""
    shutil.copytree(ROOT / "src", tmp_path / "src")
    return tmp_path


def run(tree: Path, *words: str) -> str:
    """What Python prints with the copy's package."""
    environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def add(tree: Path, path: str, text: str) -> None:
    file = tree / "src" / "unskew" / path
    assert not file.exists()
    file.write_text(text)


MODEL = '''"""One hidden layer."""

from __future__ import annotations

import math
from typing import Annotated

from annotated_types import Gt
from torch import nn

from unskew.models.blocks import Blocks, seq


def narrow(shape: tuple[int, ...], classes: int, width: Annotated[int, Gt(0), "units"] = 6) -> Blocks:
    """Flatten, one dense layer, the head."""
    first = seq(nn.Linear(math.prod(shape), width), nn.ReLU())
    return Blocks("fc", True, flat=nn.Flatten(), fc=first, head=nn.Linear(width, classes))
'''

DATA = '''"""Bright and dark images of 4x4."""

from __future__ import annotations

import numpy as np

from unskew.data.samples.dataset import Dataset

SOURCE = "made on the spot (public domain)"


def stripes() -> Dataset:
    """Samples of shape (1, 4, 4) in two classes."""
    y = np.arange(60) % 2
    x = np.broadcast_to(y.astype(np.float32)[:, None, None, None], (60, 1, 4, 4)).copy()
    return Dataset("stripes", x, y, x[:20], y[:20], ("dark", "bright"))
'''

PROBE = '''"""How many clients replied."""

from __future__ import annotations

from typing import ClassVar

from unskew.round.probes import Measurement, Probe, RoundEnd


class Replied(Probe):
    """One number."""

    name: ClassVar[str] = "replied"
    summary: ClassVar[str] = "how many clients replied"

    def measure(self, end: RoundEnd) -> Measurement:
        return Measurement({"replied": float(len(end.replies))}, {"asked": 3} if end.last else {})
'''

USE = """
import sys
import unskew
from unskew.methods import catalogue

assert "halving" in catalogue.entries() and "Halving" in dir(unskew) and "torch" not in sys.modules

from unskew.methods import registry

assert {"halving", "largest"} <= registry.names().keys() and "helper" not in registry.names()
assert registry.names()["halving_not"] == "short for halving(by=1.0)"
assert registry.parse("halving_not").parts == registry.parse("halving(by=1.0)").parts
assert unskew.Halving(by=0.25).by == 0.25 and unskew.Largest
result = unskew.run(
    "halving(by=0.25)+largest", "stripes", model="narrow(width=4)", measure="Replied", rounds=2, clients=3, epochs=1,
    skew="iid", folder="runs", name="new",
)
assert result.weights["head.weight"].shape == (2, 4)
assert result.record.series("measure", "replied") == ([1, 2], [3.0, 3.0])
assert result.record.measures == {"replied": {"asked": 3}}
assert "<p>counted</p>" in result.report().read_text()

from tests.cli.calling import call

for what, name in (("methods", "halving"), ("models", "narrow"), ("data", "stripes"), ("attacks", "guess")):
    assert name in call("list", what).out
assert "a guess" in call("attack", "runs/new", "guess").out
assert "factor on the gradient" in call("explain", "halving").out
assert "replied" in call("run", "--help", "--all").out
"""


def test_something_new_is_one_new_file(tree: Path):
    add(tree, "methods/halving.py", METHOD)
    add(tree, "merge/largest.py", RULE)
    add(tree, "models/networks/narrow.py", MODEL)
    add(tree, "data/sets/stripes.py", DATA)
    add(tree, "runs/measures/replied.py", PROBE)
    add(tree, "report/sections/counted.py", SECTION)
    add(tree, "attacks/kinds/guess.py", ATTACK)
    run(tree, "-c", USE)
