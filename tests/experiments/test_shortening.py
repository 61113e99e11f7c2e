"""A shortened run ends where the whole run ends, and whole runs stay the runs they were."""

from __future__ import annotations

import pytest

from unskew.config import Settings
from unskew.experiments.experiment import Experiment, schedule_changes, shorten
from unskew.experiments.files import read_experiment
from unskew.methods import registry


def run(table: str, method: str, scale: float) -> Settings:
    """The settings of a method in the first row of a published table."""
    experiment: Experiment = read_experiment(table)
    return experiment.settings_of(experiment.rows[0], method, scale)


def test_whole_runs_and_short_ones_without_a_schedule_keep_their_folders():
    assert run("flea-table1", "FLea", 1.0).fingerprint() == "ffa6d7ae969353e1"
    assert run("rebafl-table1", "FedAvg", 0.25).fingerprint() == "b65bc4ebce036423"
    assert run("flea-table1", "FLea", 0.25).rounds == 25
    assert run("flea-table1", "FLea", 0.001).rounds == 2


@pytest.mark.parametrize("share", [0.5, 0.25, 0.02])
@pytest.mark.parametrize(
    "falls", [{"lr_decay": 0.98}, {"lr_decay": 0.9, "lr_min": 0.001}, {"lr_rounds": 50}, {"lr_rounds": 150}]
)
def test_the_learning_rate_of_the_last_round_is_that_of_the_whole_run(share, falls):
    whole = Settings(method="fedavg", rounds=100, lr=0.1, **falls)
    short = shorten(whole, share)
    assert short.rounds == 100 * share
    assert short.lr_in(1) == whole.lr_in(1)
    assert short.lr_in(short.rounds) == pytest.approx(whole.lr_in(100), rel=1e-9)


def test_schedules_of_methods_end_where_they_do():
    whole = Settings(method="flea(variant=official, lambda2=9)", rounds=61)
    short = shorten(whole, 0.5)
    (flea,) = registry.parse(short.method).parts
    assert 9 - flea.fall * (short.rounds - 1) == pytest.approx(9 - 0.1 * 60)
    assert (flea.lambda2, flea.variant) == (9, "official")
    assert schedule_changes(whole, short) == ["flea.fall 0.1 becomes 0.2"]
    whole = whole.replace(method="fedgen(decay=0.9)")
    (fedgen,) = registry.parse(shorten(whole, 0.5).method).parts
    assert fedgen.decay**31 == pytest.approx(0.9**61)
