"""Samples of several inputs at sites: the simulator's bits, and whoever holds or claims other inputs is
refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unskew
from tests.federation import fake
from tests.federation.test_messages import greeting, posted
from unskew.data.clients.federation import Federation
from unskew.data.clients.partition import Index
from unskew.data.samples.dataset import Dataset
from unskew.errors import UsageError
from unskew.federation.protocol.hello import Hello, data_difference
from unskew.federation.protocol.study_rules import site_settings
from unskew.federation.site.study_review import forecast_settings
from unskew.records.checkpoints import digest

pytestmark = pytest.mark.usefixtures("few_attempts")
MODULE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, shapes, classes):
        super().__init__()
        self.body, self.head = nn.Linear(17, 8), nn.Linear(8, classes)

    def forward(self, scan, age):
        return self.head(self.body(torch.cat([scan.flatten(1), age[:, None]], 1)).relu())

class Placed(Net):
    def forward(self, first, second):
        return super().forward(second, first)

class Renamed(Net):
    def forward(self, image, age):
        return super().forward(image, age)
"""
SIZES = (20, 1, 12)
N = sum(SIZES)
RNG = np.random.default_rng(3)
Y = np.arange(N) % 3
SCANS = RNG.integers(0, 256, (N, 1, 4, 4), dtype=np.uint8)
AGES = (RNG.normal(size=N) + Y).astype(np.float32)
BY_NAME = {"scan": SCANS, "age": AGES}
ROWS = [np.arange(20), np.arange(20, 21), np.arange(21, 33)]


def held(given: Any = BY_NAME, rows: Any = slice(None)) -> Dataset:
    """A site's own set, as its loader reads it, with a test set of the same samples."""
    part = (
        {n: v[rows] for n, v in given.items()} if isinstance(given, dict) else tuple(v[rows] for v in given)
    )
    part = given[rows] if isinstance(given, np.ndarray) else part
    return unskew.data.arrays(part, Y[rows], part, Y[rows], classes=("a", "b", "c"))


@pytest.fixture
def module(tmp_path) -> Path:
    (tmp_path / "net.py").write_text(MODULE)
    return tmp_path / "net.py"


def simulated(given: Any, settings: Any, model: str) -> unskew.Result:
    """The same samples, dealt as the sites hold them."""
    whole, index = held(given), Index.of(ROWS)
    federation = Federation(
        "sites",
        whole.x,
        whole.y,
        whole.x_test,
        whole.y_test,
        whole.classes,
        index,
        index,
        "iid",
        layout=whole.layout,
    )
    left = {n: v for n, v in settings.as_dict().items() if n not in ("method", "data", "model")}
    return unskew.run(settings.method, federation, model=model, **left)


@pytest.mark.parametrize(
    "method",
    ["scaffold", "flea", "fedrdn+standardise(images=False)"],
)
def test_inputs_by_name_end_with_the_bits_of_the_simulator(tmp_path, module, method):
    settings = fake.small(method, clients=len(SIZES), model=f"{module}:Net")
    channel = fake.Direct(
        fake.sites_with(tmp_path / "sites", model=f"{module}:Net", sets=[held(rows=r) for r in ROWS])
    )
    loop, state, _ = fake.run(tmp_path / "run", channel, settings)
    alone = simulated(BY_NAME, settings, f"{module}:Net")
    assert digest(state.weights) == alone.digest
    assert loop.record.series("global@client", "mean") == alone.record.series("global@client", "mean")
    assert not [e for e in loop.record.rows["events"] if e["code"] != "round"]


def hello(site: str, given: Any) -> Hello:
    return Hello.of(site, held(given), {})


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (
            {"scan": SCANS, "years": AGES},
            "inputs: 'age' is at north and not at south; 'years' is at south and not at north",
        ),
        (
            BY_NAME | {"scan": SCANS / 255.0},
            "inputs: 'scan' is uint8 [1, 4, 4] at north and float32 [1, 4, 4] at south",
        ),
        (SCANS, "samples have several inputs at north and one at south"),
    ],
    ids=range(3),
)
def test_sites_of_other_inputs_cannot_take_part_together(other, text):
    north, south = hello("north", BY_NAME), hello("south", other)
    assert data_difference(north, south) == f"sites hold different data: {text}"
    assert data_difference(south, north)
    assert not data_difference(north, hello("south", dict(reversed(BY_NAME.items()))))


def test_a_model_that_does_not_take_the_inputs_is_refused_at_either_end(tmp_path, module):
    settings = fake.small("fedavg", clients=len(SIZES), model=f"{module}:Renamed")
    sets = [held(rows=r) for r in ROWS]
    with pytest.raises(UsageError, match=r"E123 .*unexpected keyword argument 'scan'"):
        fake.run(
            tmp_path / "a",
            fake.Direct(fake.sites_with(tmp_path / "sa", model=f"{module}:Net", sets=sets)),
            settings,
        )
    settings = settings.replace(model=f"{module}:Net")
    with pytest.raises(UsageError, match=r"E123 0 of 3 sites take part.* s0 refuses: .*two samples of age"):
        fake.run(
            tmp_path / "b",
            fake.Direct(fake.sites_with(tmp_path / "sb", model=f"{module}:Renamed", sets=sets)),
            settings,
        )
    with pytest.raises(UsageError, match=r"E123 .*the model 'mlp' takes one"):
        forecast_settings(held(), site_settings(settings.replace(model="mlp"), None))


def layout(**changes: Any) -> dict[str, Any]:
    return {
        "named": True,
        "inputs": [["age", [], "float32", 1], ["scan", [1, 4, 4], "float32", 255]],
        **changes,
    }


def inputs(*each: Any) -> dict[str, Any]:
    return {"layout": layout(inputs=list(each))}


@pytest.mark.parametrize(
    "claimed",
    [
        inputs(["age", [1_000_000_000], "float32", 1]) | {"shape": [1_000_000_000]},
        inputs(["a\n", [17], "float32", 1]),
        inputs(["age", [-17], "float32", 1]),
        inputs("abcd"),
        {"shape": [18]},
        inputs(["ids", [17], "int64", 1]) | {"pixels": [16]},
    ],
    ids=range(6),
)
def test_what_a_site_makes_up_of_its_inputs_is_one_line_and_leaves_the_site_out(claimed):
    facts = {"shape": [17], "layout": layout(), **claimed}
    post, _, told = posted(greeting("s0", **facts))
    post.nodes.clear()
    assert post.greet({}) == {}
    ((_, code, text),) = told
    assert code == "E310"
    assert text.startswith("s0 describes its data in an unknown form (")
    assert text.isprintable()
    assert len(text) < 300
