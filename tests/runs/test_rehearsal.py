"""Every run of a plan is put together before any trains, and what cannot run is told with its name."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

import unskew
from tests.experiments.tables import written
from unskew import cli
from unskew.comparison import training
from unskew.comparison.plan import Plan, dry_run, plan_cells
from unskew.errors import UnskewError
from unskew.runs import resolve

SMALL = {"data": "digits", "clients": 4, "samples": 60, "rounds": 1, "epochs": 1}
TABLE = """
settings: {data: digits, clients: 4, samples: 60, rounds: 2, epochs: 1, skew: iid}
methods: {FedAvg: fedavg, FLea: flea}
rows:
  fine:
  wrong: {settings: {%s}}
"""


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ('skew: "classes:20"', "E103 wrong FedAvg: skew 'classes' asks for 20 classes per client"),
        ("clients: 100000", "E103 wrong FedAvg: .* Feasible: at most 1,437 clients"),
        ("lanes: many", "E109 wrong FedAvg: lanes should be"),
        ("model: resnet18", "E123 wrong FedAvg: "),
        ("model: mlp, set: {flea: {cut: block9}}", "E104 wrong FLea: "),
        ("measure: exposure", "E126 wrong FedAvg: "),
    ],
)
def test_a_table_with_one_wrong_row_trains_nothing(tmp_path, monkeypatch, wrong, says):
    file = written(tmp_path, "mine", TABLE % wrong)
    monkeypatch.setattr(training, "train_all", lambda *_: pytest.fail("something trained"))
    words = ["reproduce", file, "--folder", str(tmp_path / "runs"), "--seeds", "2"]
    done = CliRunner().invoke(cli.app(), words)
    with pytest.raises(UnskewError, match=says):
        raise done.exception or AssertionError(done.output)
    assert not (tmp_path / "runs").exists()


def test_a_comparison_with_one_method_that_cannot_run_leaves_nothing(tmp_path):
    for compare in (
        lambda: unskew.compare(["fedavg", "flea(cut=block9)"], seeds=1, folder=tmp_path, **SMALL),
        lambda: CliRunner().invoke(
            cli.app(),
            ["compare", "fedavg", "flea(cut=block9)", "--folder", str(tmp_path)],
            catch_exceptions=False,
        ),
    ):
        with pytest.raises(UnskewError, match=r"E104 flea\(cut=block9\): "):
            compare()
    assert not list(tmp_path.iterdir())


def test_it_reads_and_deals_once_and_leaves_out_other_seeds_and_what_has_begun(tmp_path, monkeypatch):
    dealt, built = [], []
    deal, build = resolve.federation_of, resolve.run_on
    monkeypatch.setattr(resolve, "federation_of", lambda *a: dealt.append(a) or deal(*a))
    monkeypatch.setattr(resolve, "run_on", lambda *a: built.append(a) or build(*a))
    methods = ("fedavg", "fedprox", "flea", "local", "centralised")
    plan = plan_cells(tmp_path, Plan(methods, (0, 1), SMALL))
    dry_run(plan)
    assert (len(dealt), len(built)) == (2, 5)  # centralised has all rows at one client
    for cell in plan:
        cell.path.mkdir()
        (cell.path / "config.yaml").touch()
    dry_run(plan)
    assert (len(dealt), len(built)) == (2, 5)


def test_runs_on_data_that_have_changed_are_not_compared_with_new_ones(tmp_path, monkeypatch):
    """They were reused without a word where only new methods were trained."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 6)).astype(np.float32), np.arange(90) % 3
    np.savez("mine.npz", x=x, y=y)
    options = {
        "clients": 3,
        "rounds": 1,
        "epochs": 1,
        "model": "mlp",
        "skew": "iid",
        "references": False,
        "name": "c",
    }
    unskew.compare(["fedavg"], "mine.npz", seeds=1, processes=1, **options)
    unskew.compare(["fedavg", "fedprox"], "mine.npz", seeds=1, processes=1, **options)
    scores = (tmp_path / "runs/c/fedavg--s0/metrics.jsonl").read_text()
    np.savez("mine.npz", x=2 * x, y=y)
    monkeypatch.setattr(training, "train_all", lambda *_: pytest.fail("something trained"))
    with pytest.raises(UnskewError, match=r"E112 the data 'mine.npz' are not those that .*fedavg--s0"):
        unskew.compare(["fedavg", "fedprox", "fedavgm"], "mine.npz", seeds=1, **options)
    (tmp_path / "runs/c/fedprox--s0/model.safetensors").unlink()
    for words in (["resume", "runs/c"], ["compare", "fedavg", "moon", "--config", "runs/c/fedavg--s0/config.yaml", "--name", "c"]):  # fmt: skip
        done = CliRunner().invoke(cli.app(), words)
        assert isinstance(done.exception, UnskewError), done.output
        assert done.exception.code == "E112"
    assert (tmp_path / "runs/c/fedavg--s0/metrics.jsonl").read_text() == scores


def test_finished_runs_are_shown_where_their_data_are_no_more(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez(
        "mine.npz", x=np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32), y=np.arange(60) % 2
    )
    options = {
        "clients": 3,
        "rounds": 1,
        "epochs": 1,
        "model": "mlp",
        "skew": "iid",
        "references": False,
        "name": "c",
    }
    first = unskew.compare(["fedavg"], "mine.npz", seeds=1, processes=1, **options)
    (tmp_path / "mine.npz").unlink()
    again = unskew.compare(["fedavg"], "mine.npz", seeds=1, processes=1, **options)
    assert again.table() == first.table()
    with pytest.raises(UnskewError, match="E402"):
        unskew.compare(["fedavg", "fedprox"], "mine.npz", seeds=1, **options)
