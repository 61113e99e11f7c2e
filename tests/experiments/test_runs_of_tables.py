"""Which runs a table takes, and with which settings, by hand and without training any."""

from __future__ import annotations

import pytest

from unskew.errors import UsageError
from unskew.experiments import reproduce
from unskew.experiments.files import parse_experiment
from unskew.experiments.reproduce import Key, distinct_runs, plan_runs, select, with_methods

TABLE = """
title: "A table"
settings: {data: digits, clients: 4, rounds: 8, lr: 0.5}
methods: {FedAvg: fedavg, Again: fedavg, Prox: "fedprox(mu=0.25)"}
rows:
  one: {settings: {data: digits, lr: 0.125}}
  two: {settings: {data: digits}}
claims:
  - {text: "all", better: FedAvg, than: all}
  - {text: "all but one", better: FedAvg, than: all but Prox}
"""


@pytest.fixture
def table(monkeypatch):
    monkeypatch.delenv("UNSKEW_DATA", raising=False)
    return parse_experiment("table", TABLE)


def test_every_row_method_and_seed_has_a_run_and_equal_ones_share_it(table, tmp_path):
    runs = plan_runs(table, select(table), range(2), 0.5, tmp_path)
    assert list(runs) == [
        Key(r, m, s) for s in (0, 1) for r in ("one", "two") for m in ("FedAvg", "Again", "Prox")
    ]
    for key, cell in runs.items():
        assert (cell.settings.seed, cell.seed) == (key.seed, key.seed)
        assert cell.settings.lr == (0.125 if key.row == "one" else 0.5)
        assert cell.settings.rounds == 4
    assert runs[Key("one", "Again", 1)] is runs[Key("one", "FedAvg", 1)]
    assert len(distinct_runs(runs)) == len({cell.path for cell in runs.values()}) == 8


def test_a_method_is_not_added_twice_under_two_names(table):
    assert list(with_methods(table, ["scaffold"]).methods) == ["FedAvg", "Again", "Prox", "scaffold"]
    for text in ("fedprox(mu=0.25)", "fedprox( mu = 0.25 )", "Prox", "fedavg"):
        with pytest.raises(UsageError, match=r"E126 'table' already compares|E102"):
            with_methods(table, [text])
    with pytest.raises(UsageError, match="E126 'table' already compares 'scaffold'"):
        with_methods(table, ["scaffold", "scaffold"])


def test_a_table_with_a_run_that_cannot_be_is_refused_before_any_is_trained(tmp_path, monkeypatch):
    """Also where nothing is to be trained, and by the last of its methods."""
    monkeypatch.delenv("UNSKEW_DATA", raising=False)
    trained: list[object] = []
    monkeypatch.setattr(reproduce.training, "train_all", lambda *given: trained.append(given))
    path = tmp_path / "t.yaml"
    path.write_text(TABLE + "overrides: {Prox: {loss: dice}}\n")
    for more in ({"dry_run": True}, {}):
        with pytest.raises(UsageError, match="loss=dice does not fit"):
            reproduce.reproduce(path, folder=tmp_path / "runs", **more)
    assert not trained


def test_the_settings_of_a_run_are_the_rows_then_the_methods_own():
    table = parse_experiment(
        "table",
        """
settings: {data: digits, rounds: 8, lr: 0.5, epochs: 3}
methods: {FedAvg: fedavg, Prox: "fedprox(mu=0.25)"}
overrides: {Prox: {epochs: 7}}
rows:
  one: {settings: {lr: 0.125, epochs: 2, set: {fedprox: {mu: 0.75}}}}
""",
    )
    (row,) = table.rows
    plain, prox = (table.settings_of(row, method) for method in ("FedAvg", "Prox"))
    assert (plain.method, plain.lr, plain.epochs, plain.set) == ("fedavg", 0.125, 2, {})
    assert (prox.method, prox.lr, prox.epochs, prox.set) == ("fedprox(mu=0.75)", 0.125, 7, {})
    assert table.row("one") is row
    with pytest.raises(UsageError, match=r"E126 'table' has no row 'on'\. Did you mean 'one'"):
        table.row("on")
