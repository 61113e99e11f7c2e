"""Which rows and methods of a table run, with what settings."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.experiments.tables import SMALL
from tests.samples import EVERYTHING, turn
from unskew import data
from unskew.errors import DataError, UsageError
from unskew.experiments.experiment import TableRow
from unskew.experiments.files import experiment_names, parse_experiment, read_experiment
from unskew.experiments.reproduce import select
from unskew.runs.assemble import loop_of
from unskew.runs.resolve import resolve


def test_unknown_names_are_refused_with_a_suggestion():
    with pytest.raises(UsageError, match="Did you mean 'flea-table1'"):
        read_experiment("flea-table")
    experiment = read_experiment("rebafl-table2")
    with pytest.raises(UsageError, match="has no row 'mnist'"):
        select(experiment, ["mnist"])
    with pytest.raises(UsageError, match="has no row 'mnist'"):
        select(experiment, ["fashion", "mnist"])  # one that is right does not hide it
    with pytest.raises(UsageError, match="does not compare 'moon'"):
        select(experiment, (), ["moon"])
    with pytest.raises(UsageError, match="does not compare 'moon'"):
        select(experiment, (), ["FedAvg", "moon"])


def test_a_rows_whole_name_means_that_row_alone(monkeypatch):
    monkeypatch.setattr(TableRow, "has_data", True)

    def rows(name, *asked):
        return [r.name for r in select(read_experiment(name), asked).rows]

    assert len(rows("flea-table1", "uci_har")) == 6
    assert rows("flea-table1", "uci_har-dir0.1-100") == ["uci_har-dir0.1-100"]
    assert len(rows("flea-table1", "uci_har-dir0.1-100", "urbansound8k-qua3")) == 3
    assert rows("fedrdn-table2", "fundus_vessels") == ["fundus_vessels"]  # and not -small


def test_rows_without_data_are_left_out_or_refused(monkeypatch):
    monkeypatch.delenv("UNSKEW_DATA", raising=False)
    experiment = parse_experiment("small", SMALL)
    selection = select(experiment)
    assert [r.name for r in selection.rows] == ["even"]
    assert [r.name for r in selection.missing] == ["lost"]
    assert selection.methods == ("FedAvg", "Still")
    with pytest.raises(DataError, match=r"E402.*cifar10"):
        select(experiment, ["lost"])


SHAPES = {
    "cifar10": ((3, 32, 32), 10),
    "cifar100_part": ((3, 32, 32), 100),
    "fashion_mnist": ((1, 28, 28), 10),
    "fundus_vessels(size=160)": ((1, 160, 160), 2),
    "office_caltech10(size=64)": ((3, 64, 64), 10),
    "uci_har": ((1, 128, 3), 6),
    "urbansound8k_part": ((1, 64, 87), 10),
}


def small(name):
    """Two clients of a data set's shape and classes."""
    (shape, classes), n = SHAPES[name], 16
    pixels = shape[1:] if name.startswith("fundus") else ()
    y = np.arange(n * math.prod(pixels)).reshape(n, *pixels) % classes
    x = np.ones((n, *shape), np.float32)
    names = [str(c) for c in range(classes)]
    dataset = data.arrays(x, y, x[:2], y[:2], classes=names)
    return data.build(dataset, "iid", 2, np.random.default_rng(0), np.random.default_rng(1))


def test_every_method_of_every_table_fits_its_model_and_data():
    federations, seen = {name: small(name) for name in SHAPES}, set()
    for experiment in map(read_experiment, experiment_names()):
        for row in (r for r in experiment.rows if r.data in SHAPES):
            for method in experiment.methods:
                parts = tuple(part.name for part in experiment.parts(method))  # arguments seldom matter here
                key = row.data, str(row.settings.get("model")), parts, str(experiment.overrides.get(method))
                if key not in seen:
                    seen.add(key)
                    if EVERYTHING or not turn(repr(key), 40):
                        settings = experiment.settings_of(row, method)
                        loop_of(resolve(settings, federations[row.data])).trainer.close()
    assert {key[0] for key in seen} == SHAPES.keys()
