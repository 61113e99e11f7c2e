"""The columns of a table by site: their means, deviations and holes, and a site that measures in another
unit."""

from __future__ import annotations

import html
from pathlib import Path

import numpy as np
import pytest

import unskew
from unskew.data.column_statistics import columns_of, unit_warnings
from unskew.data.readers.from_tables import read_table

SITES = ("north", "south", "west")


def patients(weight_west=1.0, temperature_west=(1.0, 0.0), rows=150, sites=SITES):
    """Weights around 75 ± 12 and temperatures around 37 ± 0.6, with the west's in other units."""
    r = np.random.default_rng(3)
    site = np.array(sites)[np.arange(rows) % len(sites)]
    weight, heat = r.normal(75, 12, rows), r.normal(37, 0.6, rows)
    west = site == "west"
    weight[west] *= weight_west
    heat[west] = heat[west] * temperature_west[0] + temperature_west[1]
    columns = {
        "weight": weight,
        "heat": heat,
        "fever": (heat > 37.5) * 1.0,
        "site": site,
        "y": r.integers(0, 2, rows),
    }
    return read_table(columns, "t", label="y", site="site")


@pytest.mark.parametrize(
    ("other", "column"),
    [
        ({"weight_west": 9.0}, "weight"),
        ({"weight_west": 1000.0}, "weight"),
        ({"weight_west": 2.2046}, "weight"),
        ({"temperature_west": (1.8, 32.0)}, "heat"),
    ],
)
def test_a_site_in_other_units_is_pointed_out_with_its_column(other, column):
    warnings = unit_warnings(patients(**other))
    assert len(warnings) == 1
    assert warnings[0].startswith(f"west: column '{column}' has a mean ")


@pytest.mark.parametrize("honest", [True, False])
def test_other_shares_of_the_classes_are_no_other_unit(honest):
    """Of the sick a marker is 60 ± 1, of the healthy 40 ± 1. Three hospitals see one sick in a hundred, the
    fourth half: its deviation is 5 times theirs, in one unit. In tenths of the unit it is named."""
    r = np.random.default_rng(0)
    site, n = np.repeat(["a", "b", "c", "west"], 200), 800
    sick = r.random(n) < np.where(site == "west", 0.5, 0.01)
    marker = np.where(sick, 60, 40) + r.normal(size=n)
    columns = {"marker": np.where((site == "west") & ~honest, 10, 1) * marker, "site": site, "y": sick * 1}
    warnings = unit_warnings(read_table(columns, "t", label="y", site="site"))
    assert [text.split(":")[0] for text in warnings] == ([] if honest else ["west"])


@pytest.mark.parametrize("apart", [True, False])
def test_another_unit_is_told_where_no_class_can_be_compared(apart):
    """Each hospital has classes of its own, or two rows of each class."""
    r, n = np.random.default_rng(0), 160
    site = np.repeat(["a", "b", "c", "west"], 40)
    y = np.repeat(np.arange(4), 40) if apart else np.arange(n) % 20
    marker = (5 + r.normal(size=n)) * np.where(site == "west", 9, 1)
    warnings = unit_warnings(
        read_table({"marker": marker, "site": site, "y": y}, "t", label="y", site="site")
    )
    assert [text.split(":")[0] for text in warnings] == ["west"]


def test_python_and_the_report_say_it_too(tmp_path):
    small = {"rounds": 1, "epochs": 1, "skew": "column:site", "workers": 1}
    with pytest.warns(UserWarning, match="west: column 'weight' has a mean"):
        done = unskew.run("fedavg", patients(weight_west=9.0), **small, folder=tmp_path, name="r")
    with pytest.warns(UserWarning, match="west: column 'weight' has a mean"):
        unskew.compare(["fedavg"], data=patients(weight_west=9.0), **small, seeds=1, folder=tmp_path)
    page = html.unescape(Path(done.report()).read_text())
    assert "west: column 'weight' has a mean" in page


@pytest.mark.parametrize("seed", range(3))
def test_sites_in_one_unit_are_not(seed):
    """Also not by chance in small sites, heavy tails, columns of zeros and ones, or of mostly zeros."""
    r = np.random.default_rng(seed)
    n = 200
    columns = {f"c{i}": r.normal(size=n) for i in range(20)} | {
        "skewed": np.exp(r.normal(size=n)),
        "rare": (r.random(n) < 0.03) * 1.0,
        "counts": r.poisson(1.0, n) * 1.0,
        "site": r.integers(0, 8, n),
        "y": r.integers(0, 2, n),
    }
    assert unit_warnings(read_table(columns, "t", label="y", site="site")) == []


def test_means_and_deviations_by_hand():
    columns = {
        "v": np.array([1.0, 3, 5, 9]),
        "w": np.array(["a", "b", "a", "a"]),
        "site": list("nnss"),
        "y": [0, 1, 0, 1],
    }
    test = {"v": [0.0], "w": ["a"], "site": ["n"], "y": [0]}
    both = {k: [*columns[k], *test[k]] for k in columns} | {"split": ["train"] * 4 + ["test"]}
    found = read_table(both, "t", label="y")
    v, w = columns_of(found)
    assert (v.name, v.mean, v.std) == ("v", 4.5, pytest.approx(np.std([1, 3, 5, 9])))
    assert w.kinds == (("a", 0.75), ("b", 0.25))
