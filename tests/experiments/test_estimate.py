"""How long a table takes is listed before it starts."""

from __future__ import annotations

import numpy as np
from typer.testing import CliRunner

from tests.experiments.tables import SMALL
from unskew import cli, data
from unskew.config import Settings
from unskew.engine import hardware
from unskew.errors import UsageError
from unskew.experiments import estimate, files
from unskew.experiments.parsing import parse_experiment


def test_the_list_tells_how_long_every_table_would_take(monkeypatch):
    monkeypatch.delenv("UNSKEW_DATA", raising=False)
    monkeypatch.setattr(files, "experiment_names", lambda: ["small"])
    monkeypatch.setattr(files, "read_experiment", lambda name: parse_experiment(name, SMALL))
    monkeypatch.setattr(estimate, "_time", lambda settings, dataset, batch: 0.01)
    monkeypatch.setattr(estimate, "_timed", {})
    plain = CliRunner().invoke(cli.app(), ["list", "experiments"])
    assert "small  A small table; 1 of 2 rows can run here, 2 methods" in plain.output
    assert "--time" in plain.output
    listed = CliRunner().invoke(cli.app(), ["list", "experiments", "--time"])
    scored = 360 * 4 / 3  # test samples, every round, at a third of a training sample's cost
    trained = 240 * 3 * 4  # samples of four clients, epochs, rounds
    each = 0.01 * (trained + scored)
    minutes, seconds = divmod(int(3 * 2 * each / min(hardware.cores(), 6)), 60)
    assert f"About {minutes}:{seconds:02d} for 3 seeds on {hardware.cores()} cores." in listed.output
    wrong = CliRunner().invoke(cli.app(), ["list", "data", "--time"])
    assert isinstance(wrong.exception, UsageError)


def test_the_time_is_listed_for_labels_a_sample_and_a_pixel_and_clients_by_column():
    r = np.random.default_rng(0)
    pixels = data.arrays(
        r.random((12, 1, 16, 16), np.float32), r.integers(0, 2, (12, 16, 16)), columns={"domain": np.arange(12) % 3}
    )
    short = Settings(data="p", model="unet(base=4,levels=2)", loss="dice", skew="domain", rounds=2, batch=2)
    assert 0 < estimate.seconds(short, pixels) * 4 < estimate.seconds(short.replace(rounds=10), pixels)
    assert estimate._clients(short, pixels) == 3
    labels = data.arrays(r.random((40, 4), np.float32), np.arange(40) % 2)
    plain = Settings(data="l", model="mlp", skew="iid", clients=4, rounds=4, batch=2)
    assert 0 < estimate.seconds(plain.replace(availability="sample:0.25"), labels) < estimate.seconds(plain, labels)
