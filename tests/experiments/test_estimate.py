"""How long a table takes is listed before it starts."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.experiments.tables import SMALL
from unskew import cli, data
from unskew.config import Settings
from unskew.errors import UsageError
from unskew.experiments import files, plan
from unskew.experiments.files import parse_experiment
from unskew.runs import hardware
from unskew.runs.resolve import dataset_of


def test_the_list_tells_how_long_every_table_would_take(monkeypatch):
    monkeypatch.delenv("UNSKEW_DATA", raising=False)
    monkeypatch.setattr(files, "experiment_names", lambda: ["small"])
    monkeypatch.setattr(files, "read_experiment", lambda name: parse_experiment(name, SMALL))
    monkeypatch.setattr(plan, "_time", lambda settings, dataset, batch: 0.01)
    monkeypatch.setattr(plan, "_step_times", {})
    plain = CliRunner().invoke(cli.app(), ["list", "experiments"])
    assert "small  A small table; 1 of 2 rows can run here, 2 methods" in plain.output
    assert "--time" in plain.output
    listed = CliRunner().invoke(cli.app(), ["list", "experiments", "--time"])
    scored = 360 * 4 / 3  # test samples, every round, at a third of a training sample's cost
    trained = 240 * 3 * 4  # samples of four clients, epochs, rounds
    each = 0.01 * (trained + scored)
    minutes, seconds = divmod(int(3 * 2 * each / min(hardware.core_count(), 6)), 60)
    assert f"About {minutes}:{seconds:02d} for 3 seeds on {hardware.core_count()} cores." in listed.output
    wrong = CliRunner().invoke(cli.app(), ["list", "data", "--time"])
    assert isinstance(wrong.exception, UsageError)


def test_the_time_is_listed_for_labels_a_sample_and_a_pixel_and_clients_by_column():
    r = np.random.default_rng(0)
    pixels = data.arrays(
        r.random((12, 1, 16, 16), np.float32),
        r.integers(0, 2, (12, 16, 16)),
        columns={"domain": np.arange(12) % 3},
    )
    short = Settings(data="p", model="unet(base=4,levels=2)", loss="dice", skew="domain", rounds=2, batch=2)
    assert 0 < plan.seconds(short, pixels) * 4 < plan.seconds(short.replace(rounds=10), pixels)
    assert plan._clients(short, pixels) == 3
    labels = data.arrays(r.random((40, 4), np.float32), np.arange(40) % 2)
    plain = Settings(data="l", model="mlp", skew="iid", clients=4, rounds=4, batch=2)
    assert 0 < plan.seconds(plain.replace(availability="sample:0.25"), labels) < plan.seconds(plain, labels)


def test_runs_go_side_by_side_on_as_many_cores_as_there_are_runs(monkeypatch):
    monkeypatch.setattr(plan, "seconds", lambda settings, dataset: 10.0)
    monkeypatch.setattr(plan, "_dataset", lambda name: None)
    runs = [Settings(), Settings(rounds=3)]
    assert plan.seconds_for(runs, cores=8) == 10
    assert plan.seconds_for(runs, cores=1) == 20
    assert plan.seconds_for(runs, cores=4, seeds=3) == 15


def test_a_runs_time_by_hand(monkeypatch):
    """Of 40 samples at a second each: 4 rounds of 2 epochs, and scores of 12 test samples in every second
    round."""
    monkeypatch.setattr(plan, "_time", lambda settings, dataset, batch: 1.0)
    monkeypatch.setattr(plan, "_step_times", {})
    x, y = np.zeros((52, 4), np.float32), np.arange(52) % 2
    labels = data.arrays(x[:40], y[:40], x[40:], y[40:])
    plain = Settings(data="h", model="mlp", skew="iid", clients=4, rounds=4, epochs=2, eval_every=2)
    assert plan.seconds(plain, labels) == 40 * 8 + 12 * 2 / 3
    assert plan.seconds(plain.replace(method="fedmix"), labels) == 3 * 40 * 8 + 12 * 2 / 3
    for availability, share in (
        ("sample:0.25", 0.25),
        ("poisson:0.5", 0.5),
        ("clustered:0.5-0.3", 0.5),
        ("persistent:0.2x10", 0.2),
        ("sample:3", 1.0),
        ("full", 1.0),
    ):
        assert plan.seconds(plain.replace(availability=availability), labels) == 40 * 8 * share + 12 * 2 / 3
    assert plan._samples(plain.replace(skew="pathological:2x5", clients=3), labels) == 30
    assert plan._samples(plain.replace(samples=7), labels) == 28
    assert plan._samples(plain.replace(samples=70), labels) == 40


@pytest.mark.parametrize(
    ("took", "expected", "epochs"), [([0.3, 0.1, 0.2], 0.1, 3), ([0.6, 0.7], 0.6, 2), ([5.0], 5.0, 1)]
)
def test_what_else_the_machine_does_while_one_epoch_is_timed_is_not_counted(
    took, expected, epochs, monkeypatch
):
    """One epoch alone made 34 hours of one, on a machine that was busy for a moment."""
    now, left, count = [0.0], list(took), 0

    def epoch() -> None:
        nonlocal count
        now[0], count = now[0] + left.pop(0), count + 1

    monkeypatch.setattr(plan.time, "perf_counter", lambda: now[0])
    assert (plan._fastest(epoch), count) == (pytest.approx(expected), epochs)


def test_seconds_of_a_sample_are_those_of_an_epoch_of_four_clients_by_its_samples(monkeypatch):
    monkeypatch.setattr(plan, "_fastest", lambda epoch: epoch() is None or 64.0)
    settings = Settings(data="digits", model="mlp")
    assert plan._time(settings, dataset_of(settings), 4) == 64.0 / (4 * 4 * 4)
