"""Energy that codecarbon estimates: written beside a run, and in its report where it was measured and nowhere
else."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import unskew
from unskew.errors import StateError, UsageError
from unskew.report.sections.energy import EnergyUse, energy_use

X = np.random.default_rng(0).random((60, 4), dtype=np.float32)
DATA = (X, np.arange(60) % 2, X[:20], np.arange(20) % 2)
TINY = {"clients": 3, "skew": "iid", "model": "mlp", "epochs": 1}


@pytest.fixture
def meters(monkeypatch):
    """In place of codecarbon, one whose meters have drawn 0.25 kWh each; returns what they were made with."""
    monkeypatch.delenv("CODECARBON_COUNTRY_ISO_CODE", raising=False)
    given = []

    class OfflineEmissionsTracker:
        def __init__(self, **settings):
            given.append(settings)

        def start(self):
            self.final_emissions_data = types.SimpleNamespace(energy_consumed=0.25, duration=8.0)

        def stop(self):
            return 0.05

    module = types.ModuleType("codecarbon")
    module.__spec__ = types.SimpleNamespace(name="codecarbon")  # type: ignore[assignment]
    module.OfflineEmissionsTracker = OfflineEmissionsTracker  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "codecarbon", module)
    return given


def trained(folder: Path, **more) -> unskew.Result:
    return unskew.run("fedavg", DATA, rounds=4, name="r", folder=folder, **{**TINY, **more})


def rows(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "energy.jsonl").read_text().splitlines()]


def test_what_a_run_drew_stands_beside_it_and_in_its_report(tmp_path, meters):
    measured = trained(tmp_path, track="codecarbon")
    assert rows(measured.path) == [{"after": 0, "to": 4, "kwh": 0.25, "seconds": 8.0}]
    assert [(m["tracking_mode"], m["save_to_file"]) for m in meters] == [("process", False)]
    page = measured.report().read_text()
    assert ">kWh a run</th>" in page
    assert "<td>1 of 1</td><td>4</td><td>0.25</td><td>62.5</td></tr>" in page
    assert "kg CO₂" not in page
    assert "estimated by codecarbon" in page.lower()
    assert measured.digest == trained(tmp_path / "plain").digest


def test_without_it_a_report_says_nothing_of_energy(tmp_path):
    assert "kWh" not in trained(tmp_path).report().read_text()


def test_a_country_makes_it_co2(tmp_path, meters, monkeypatch):
    monkeypatch.setenv("CODECARBON_COUNTRY_ISO_CODE", "deu")
    measured = trained(tmp_path, track="codecarbon")
    assert meters[0]["country_iso_code"] == "DEU"
    assert rows(measured.path)[0] == {
        "after": 0,
        "to": 4,
        "kwh": 0.25,
        "seconds": 8.0,
        "kg_co2": 0.05,
        "country": "DEU",
    }
    assert "<td>0.05 (DEU)</td>" in measured.report().read_text()


def test_every_process_of_a_run_counts(tmp_path, meters):
    class Stops(unskew.Callback):
        def merged(self, run):
            if run.t == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, track="codecarbon", callbacks=[Stops()])
    measured = trained(tmp_path, track="codecarbon")
    assert [(row["after"], row["to"]) for row in rows(measured.path)] == [(0, 2), (1, 4)]
    assert energy_use(measured.path) == EnergyUse(5, 0.5, None, ())


def test_a_run_in_memory_has_no_place_for_it(meters):
    with pytest.raises(UsageError, match=r"E109 track writes files"):
        unskew.run("fedavg", DATA, rounds=1, track="codecarbon", **TINY)


@pytest.mark.parametrize(
    "row",
    [
        '{"after": 0, "to": 4}', '{"after": 0, "to": 4, "kwh": -1}', '{"after": 0, "to": 4, "kwh": "much"}', "[]", "3",
        '{"after": 4, "to": 0, "kwh": 1}', '{"after": 0, "to": 1e300, "kwh": 1}', '{"after": 0, "to": 4, "kwh": NaN}',
    ],
)  # fmt: skip
def test_a_file_that_holds_something_else_is_one_sentence(tmp_path, row):
    (tmp_path / "energy.jsonl").write_text(row + "\n")
    with pytest.raises(
        StateError,
        match=(
            r"E111 .*energy\.jsonl(, line 1, should hold keys| does not hold what a run was measured to draw)"
        ),
    ):
        energy_use(tmp_path)


def test_codecarbon_itself(tmp_path):
    pytest.importorskip("codecarbon", reason="codecarbon is not installed: pip install 'unskew[energy]'")
    measured = trained(tmp_path, track="codecarbon")
    (row,) = rows(measured.path)
    assert row["kwh"] > 0
    assert row["seconds"] > 0
