"""Samples in other units or of raw sizes (E504): the site is named, and the remedy is one the study has."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import unskew
from tests.federation import fake  # skips where cryptography is missing
from unskew.core.replies import Reply
from unskew.data.column_statistics import UNIT_REMEDY
from unskew.data.samples.dataset import Dataset
from unskew.federation import site_data
from unskew.federation.coordinator.outliers import unit_remarks
from unskew.federation.protocol.hello import Hello
from unskew.federation.protocol.study_rules import scaling_remedy, site_settings
from unskew.federation.site.study_review import Study, forecast_settings, looks_unscaled


def patients(seed: int, older: float = 0.0, smokers: float = 0.3, n: int = 60) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "age": rng.normal(60 + older, 12, n).round(),
        "sex": np.array(["f", "m"])[np.arange(n) % 2],
        "weight": rng.normal(75, 12, n).round(1),
        "heat": rng.normal(37, 0.8, n).round(2),
        "ward": np.array(["one", "two", "three"])[np.arange(n) % 3],
        "smoker": (rng.random(n) < smokers).astype(int),
    }


def table(path, columns: dict[str, np.ndarray]) -> Dataset:
    labels = ["no", "yes"] * (len(columns["age"]) // 2)
    rows = [",".join(map(str, row)) for row in zip(*columns.values(), labels)]
    path.write_text("\n".join([",".join([*columns, "label"]), *rows]) + "\n")
    return site_data.load(str(path), ["no", "yes"])


def told(tmp_path, *given: dict[str, np.ndarray]) -> dict[str, str]:
    """What is said of sites with these patients, by the statistics that they would send."""
    sets = [table(tmp_path / f"{k}.csv", columns) for k, columns in enumerate(given)]
    hellos = [Hello.read(Hello.of(f"s{k}", data, {}).as_json()) for k, data in enumerate(sets)]
    replies = []
    for k, data in enumerate(sets):
        x = torch.as_tensor(np.asarray(data.x))
        shares = {"standardise": {"mu": x.mean(0), "sigma": x.std(0, correction=0)}}
        replies.append(Reply(k, float(len(x)), {}, shares, {}))
    return unit_remarks(hellos, replies, "standardise")


@pytest.mark.parametrize(
    ("column", "change"),
    [
        ("weight", lambda kg: 2.2046 * kg),
        ("heat", lambda celsius: 1.8 * celsius + 32),
        ("age", lambda age: np.where(np.arange(len(age)) % 20, age, -999)),
        ("weight", lambda kg: 75 + (kg - 75) / 10),
    ],
)
def test_a_column_in_other_units_is_named_with_its_site(tmp_path, column, change):
    """Nobody could see it: the constants that all sites scaled by fitted none of them, and the run ended as
    if all were well."""
    other = patients(2)
    texts = told(tmp_path, patients(0), patients(1), {**other, column: change(other[column])})
    assert list(texts) == ["s2"]
    assert texts["s2"].startswith(f"column '{column}' has ")
    assert texts["s2"].endswith(f"; {UNIT_REMEDY}")
    assert texts["s2"].count("column") == 1


def test_hospitals_whose_patients_differ_are_not_named(tmp_path):
    """Older by two deviations, hardly anybody smokes, everybody does, few patients."""
    many = patients(2, smokers=0.005, n=2000)
    assert told(tmp_path, patients(0), patients(1, older=24), many, patients(3, smokers=1.0)) == {}
    few = patients(4, n=8)
    assert told(tmp_path, patients(0), patients(1), {**few, "weight": 2.2046 * few["weight"]}) == {}
    assert told(tmp_path, patients(0)) == {}


def test_the_run_says_so_and_goes_on(tmp_path):
    odd = patients(2)
    columns = patients(0), patients(1), {**odd, "heat": 1.8 * odd["heat"] + 32}
    sites = fake.sites_with(tmp_path, [table(tmp_path / f"{k}.csv", each) for k, each in enumerate(columns)])
    settings = fake.small("fedavg", rounds=1).replace(method="standardise", model="mlp", clients=3)
    loop, state, _ = fake.run(tmp_path / "run", fake.Direct(sites), settings)
    (text,) = [e["text"] for e in loop.record.rows["events"] if e["code"] == "E504"]
    assert text.startswith("s2: column 'heat' has a mean ")
    assert (state.t, [e["code"] for e in loop.record.rows["events"]]) == (1, ["E504", "round"])


MODULE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, shapes, classes):
        super().__init__()
        self.head = nn.Linear(49, classes)

    def forward(self, photo, age):
        return self.head(torch.cat([photo.flatten(1), age[:, None]], 1))
"""
RNG = np.random.default_rng(5)
Y = np.arange(24) % 3
AGES, PHOTOS = RNG.normal(60, 15, 24).astype("f4"), RNG.random((24, 3, 4, 4)).astype("f4")
NAMES = ("a", "b", "c")


@pytest.fixture
def module(tmp_path) -> str:
    (tmp_path / "net.py").write_text(MODULE)
    return f"{tmp_path / 'net.py'}:Net"


def several() -> Dataset:
    x = {"photo": 1000 * PHOTOS, "age": AGES}
    return unskew.data.arrays(x, Y, x, Y, classes=NAMES)


def study_of(method: str, data: Dataset, model: str) -> Study:
    settings = fake.small("fedavg").replace(method=method, model=model, clients=3)
    return forecast_settings(data, site_settings(settings, model))[0]


@pytest.mark.parametrize("method", ["fedavg", "unskew", "unskew(statistics=False)"])
def test_beside_a_part_that_scales_images_only_the_other_inputs_are_left_to_scale(method, module):
    study = study_of(method, several(), module)
    alone, why = method in ("fedavg", "unskew(statistics=False)"), looks_unscaled(several(), study)
    assert ("input age" in why, "input photo" in why) == (True, alone)
    (added,) = re.findall(
        r"add (\+\S+) to the method", scaling_remedy(study.method, study.fed.net.layout, summed=False)
    )
    assert added == ("+standardise" if alone else "+standardise(images=False)")
    assert looks_unscaled(several(), study_of(f"{method}{added}", several(), module)) == ""
