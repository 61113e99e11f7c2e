"""The estimate of the processor time of tables, and the commands that print it."""

from __future__ import annotations

import json

import pytest

from tests.cli.calling import call
from unskew.config import Settings
from unskew.experiments import duration


@pytest.fixture
def a_millisecond_a_sample(monkeypatch):
    monkeypatch.setattr(duration, "_per_sample", lambda *_: 0.001)


def test_an_estimate_by_hand(a_millisecond_a_sample):
    """4 clients of 60 samples, 6 rounds of 2 epochs: 2,880 samples are trained on. 360 test samples are scored
    3 times at a third of the cost. Together 3.24 s, for 100 seeds 324 s."""
    settings = Settings(data="digits", skew="iid", clients=4, samples=60, rounds=6, epochs=2, eval_every=2)
    assert duration.duration_text([settings], 100) == "About 5:24 of one processor"


def test_lists_have_the_time_of_experiments_alone(a_millisecond_a_sample, monkeypatch):
    monkeypatch.setattr("unskew.experiments.files.experiment_names", lambda: ["fedrdn-table3"])
    (line,) = call("list", "experiments", "--time").out.splitlines()
    assert " of one processor for 3 seeds." in line
    about = json.loads(call("list", "experiments", "--time", "--json").out)["fedrdn-table3"]
    assert line.endswith(about)
    refused = call("list", "methods", "--time")
    assert (refused.code, refused.err[:4]) == (2, "E109")
