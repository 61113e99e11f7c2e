"""Every method has as many trials as the others, on samples that no table is scored by."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.experiments.tables import LEAKING, MEASURED, SMALL, written
from unskew import cli, config
from unskew.comparison import search as comparison_search
from unskew.errors import UsageError
from unskew.experiments import tune, wording
from unskew.experiments.files import parse_experiment
from unskew.methods import registry
from unskew.report.analysis import runs as analysis_runs


def test_every_method_is_tuned_with_as_many_trials_and_never_on_the_test_set(tmp_path, monkeypatch):
    monkeypatch.delenv("UNSKEW_DATA", raising=False)
    table = written(tmp_path, "small", SMALL.replace("{lr: 0.0000001}", "{lr: 0.1}"))
    words = ["reproduce", table, "--seeds", "1", "--folder", str(tmp_path), "--processes", "1", "--tune", "3"]
    done = CliRunner().invoke(cli.app(), [*words, "--json"])
    assert done.exit_code == 0, done.output
    result = json.loads(done.output)
    assert {m: len(t["trials"]) for m, t in result["tuned"].items()} == {"FedAvg": 3, "Still": 3}
    first = result["tuned"]["Still"]["trials"][0]
    assert (first["lr factor"], first["fedprox.mu"]) == (1.0, 1000000.0)  # what the table says, first
    best = max(
        result["tuned"]["Still"]["trials"], key=lambda t: t["score"] or 0
    )  # one that diverged has none
    assert best["fedprox.mu"] < 1
    assert f"mu={best['fedprox.mu']}" in result["tuned"]["Still"]["method"]
    settings = [config.load(p) for p in tmp_path.rglob("config.yaml")]
    assert sorted({(s.validation, s.seed) for s in settings}) == [(0.0, 0), (0.2, tune.SEED)]
    assert "--tune 3" in result["command"]
    assert "Tuned with 3 trials per method" in wording.note(result)
    planned = CliRunner().invoke(cli.app(), [*words, "--dry-run"])
    assert "tuning  3 trials for each of 2 methods on even" in planned.output


def test_trials_are_the_grid_without_repetition():
    experiment = parse_experiment("small", SMALL)
    space, first = tune.space_of(experiment, "Still", experiment.rows[0])
    search, seen = comparison_search.ShuffledGrid(space, first), []
    while (point := search.ask()) is not None:
        seen.append(tuple(point.values()))
    assert seen[0] == (1.0, 1000000.0)
    assert len(seen) == len(set(seen)) == 3 * 4


def test_what_the_row_says_itself_is_not_tuned():
    """It stands whatever is tried: all trials would be one run, and the table would name a value that it did
    not use."""
    text = SMALL.replace("skew: iid}, published", "skew: iid, set: {fedprox: {mu: 0.5}}}, published")
    experiment = parse_experiment("small", text)
    row = experiment.row("even")
    assert set(tune.space_of(experiment, "Still", row)[0]) == {tune.FACTOR}
    assert "fedprox.mu" in tune.space_of(experiment, "Still", experiment.row("lost"))[0]


class Scored:
    """A run of a regression with one value of whatever it is asked for."""

    metric, evaluated = "rmse", True

    def __init__(self, value: float):
        self.value = value

    def series(self, scope: str, metric: str):
        return np.array([1]), np.array([self.value])


def test_trials_are_judged_by_what_the_row_reports(monkeypatch, tmp_path):
    """Of an error at clients the least is the best, and of a calibration error, too."""
    text = (
        "methods: {A: fedavg}\nunit: number\nmetric: mean\nscope: global@client\nrows: {r: {settings: {data:"
        " digits}}}"
    )
    for table, best in ((text, 1.0), (text.replace("{settings:", "{metric: ece, settings:"), 1.0)):
        experiment = parse_experiment("errors", table)
        runs = map(Scored, [3.0, 1.0, 2.0])
        monkeypatch.setattr(analysis_runs, "read_run", lambda *_, runs=runs: next(runs))
        asked = tune.Tuning(experiment.rows[0], ["A"], 3, "random", 1.0, tmp_path)
        _, trials = tune.tune_methods(experiment, asked, lambda cells: None)
        tried = trials["A"].tried
        assert next(t.score for t in tried if t.point == trials["A"].best) == best


def test_what_cannot_be_tuned_is_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("UNSKEW_DATA", raising=False)
    distances = MEASURED.replace("unit: number", "unit: percent")
    tables = [(MEASURED, "random"), (distances, "random"), (LEAKING, "random"), (SMALL, "annealing")]
    for text, sampler in tables:
        experiment = parse_experiment("it", text)
        experiment = replace(experiment, rows=experiment.rows[-1:]) if text is LEAKING else experiment
        with pytest.raises(UsageError, match="E109"):
            tune.tune_methods(
                experiment,
                tune.Tuning(experiment.rows[0], list(experiment.methods), 2, sampler, 1.0, tmp_path),
                lambda cells: None,
            )


def test_every_grid_names_arguments_that_exist_and_values_that_they_take():
    for part, grid in tune.GRIDS.items():
        for argument, values in grid.items():
            for value in values:
                assert getattr(registry.parse(part, {part: {argument: value}}).parts[0], argument) == value
