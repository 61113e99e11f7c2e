"""Many runs seen from outside: what a cell reads of a run that another process writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from unskew import data
from unskew.comparison import plan
from unskew.comparison.progress import Cell, discard
from unskew.config import Settings
from unskew.core.method import Method
from unskew.errors import NothingUsed, StateError, UsageError
from unskew.methods.fedprox import FedProx
from unskew.records.run_lock import RunLock
from unskew.runs import conformance


def scored(t, value):
    row = {"t": t, "scope": "global", "client": None, "metric": "accuracy", "value": value}
    return json.dumps(row) + "\n"


def cell(path, **settings):
    return Cell("fedavg", 0, path, Settings(**settings))


def test_a_cell_reads_on_and_anew_where_its_run_went_back(tmp_path):
    seen, metrics = cell(tmp_path), tmp_path / "metrics.jsonl"
    metrics.write_text(scored(1, 0.5) + scored(2, 0.6))
    for _ in range(2):
        seen.look()
        assert (seen.t, seen.score) == (2, 0.6)
    metrics.write_text(scored(1, 0.5) + scored(2, 0.25) * 3)  # another file, read from the middle of a line
    for _ in range(2):
        seen.look()
    assert (seen.t, seen.score) == (2, 0.25)


def test_runs_of_other_settings_do_not_come_into_one_table(tmp_path):
    """Methods and seeds that were there already stood beside the new ones, with other rounds and data."""
    before = plan.Plan(("fedprox",), (0,), {"rounds": 50})
    plan.write_plan(tmp_path, before)
    plan.write_plan(tmp_path, plan.Plan(("fedavg",), (0,), {"rounds": 20}))  # nothing has begun
    plan.write_plan(tmp_path, before)
    (tmp_path / "fedprox--s0").mkdir()
    (tmp_path / "fedprox--s0" / "metrics.jsonl").write_text("")
    for other in (
        plan.Plan(("fedavg",), (0,), {"rounds": 20}),
        plan.Plan(("fedprox",), (1,), {"rounds": 20}),
    ):
        with pytest.raises(StateError, match=f"E112 {tmp_path} holds another run: rounds was 50, is 20 now"):
            plan.write_plan(tmp_path, other)
    assert plan.read_plan(tmp_path).settings["rounds"] == 50
    further = {"rounds": 50, "set": {"scaffold": {"weighted": True}}, "workers": 2}
    plan.write_plan(tmp_path, plan.Plan(("fedprox", "scaffold"), (0, 1), further))
    assert plan.read_plan(tmp_path).methods == ("fedprox", "scaffold")


def test_a_cell_has_each_score_under_its_own_name(tmp_path):
    seen = cell(tmp_path)
    rows = [
        ("global", None, "f1", 0.9), ("global", None, "accuracy", 0.6), ("global@client", None, "mean", 0.5),
        ("global@client", None, "worst", 0.2), ("global@client", 3, "accuracy", 0.1), ("global", 3, "accuracy", 0.3),
        ("personal@client", None, "mean", 0.8),
    ]  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text(
        "".join(
            json.dumps({"t": 2, "scope": scope, "client": k, "metric": metric, "value": value}) + "\n"
            for scope, k, metric, value in rows
        )
    )
    seen.look()
    assert (seen.score, seen.client_mean, seen.client_worst, seen.metric) == (0.6, 0.5, 0.2, "accuracy")


def test_a_run_is_done_with_a_score_or_where_its_clients_trained_none(tmp_path):
    seen = cell(tmp_path)
    done = {}
    for code in (None, 0, 1, 2, NothingUsed.exit_code, 75):
        seen.code = code
        done[code] = seen.done
    assert done == {None: False, 0: True, 1: False, 2: False, NothingUsed.exit_code: True, 75: False}
    assert not seen.ended
    (tmp_path / "model.safetensors").write_text("")
    assert seen.ended


def test_what_only_this_process_has_stays_an_object(tmp_path):
    class Mine(FedProx):
        name = "mine"

    class Twin(FedProx):
        """Called like the one that comes with unskew."""

    given = ["fedavg", FedProx(mu=0.5), Method(), Path("m.py"), Mine(), Twin()]
    named = plan.named_methods(given)
    assert [method.text for method in named] == [
        "fedavg", "fedprox(mu=0.5)", "fedavg", "m.py", "mine", "fedprox",
    ]  # fmt: skip
    assert [method.method for method in named] == [None] * 4 + [Method(Mine()), Method(Twin())]
    (labelled,) = plan.named_methods({"strong": FedProx(mu=0.5)})
    assert labelled == plan.NamedMethod("strong", "fedprox(mu=0.5)")
    for wrong, words in (
        ("fedavg", "takes a list of methods"),
        (FedProx(), "takes a list"),
        ({"": "fedavg"}, "labels are texts other than local and centralised"),
        ({"local": Mine()}, "labels are texts other than local and centralised"),
    ):
        with pytest.raises(UsageError, match=f"E109 .*{words}"):
            plan.named_methods(wrong)
    clients = conformance.small_federation()
    assert plan.data_as_settings(clients, tmp_path)[1] is clients


def test_data_of_this_process_are_written_for_workers(tmp_path):
    x, y = np.random.default_rng(0).random((40, 1, 4, 4), np.float32), np.arange(40) % 4
    settings, _ = plan.data_as_settings(data.arrays(x, y, test=0.25), tmp_path)
    assert settings["data"] == str(tmp_path / "data.npz")
    assert len(data.npz(tmp_path / "data.npz").x) == 30
    divided, _ = plan.data_as_settings([(x[:20], y[:20]), (x[20:], y[20:])], tmp_path / "two")
    assert divided["skew"].startswith("column:")
    assert plan.data_as_settings("digits", tmp_path) == ({"data": "digits"}, None)


def test_a_run_in_use_is_not_discarded(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
    with RunLock(tmp_path / "b"), pytest.raises(StateError, match="E110"):
        discard([tmp_path / "a", tmp_path / "b"])
    assert [p.name for p in tmp_path.iterdir()] == ["b"]
