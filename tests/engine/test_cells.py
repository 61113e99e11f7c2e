"""Many runs seen from outside: what a cell reads of a run that another process writes, and the time that is left."""

from __future__ import annotations

import json

import pytest

from unskew.cli import progress
from unskew.cli.progress import Progress
from unskew.comparison import plan
from unskew.comparison.runs import discard
from unskew.comparison.watch import Cell
from unskew.config import Settings
from unskew.engine.disk.lock import Lock
from unskew.errors import StateError


def sent(t, megabytes):
    return json.dumps({"t": t, "way": "up", "share": "w", "clients": [0, 1], "bytes": int(megabytes * 5e5)}) + "\n"


def scored(t, value):
    row = {"t": t, "scope": "global", "client": None, "metric": "accuracy", "value": value}
    return json.dumps(row) + "\n"


def cell(path, **settings):
    return Cell("fedavg", 0, path, Settings(**settings))


def test_a_cell_reads_on_and_anew_where_its_run_went_back(tmp_path):
    seen, ledger, metrics = cell(tmp_path), tmp_path / "ledger.jsonl", tmp_path / "metrics.jsonl"
    ledger.write_text(sent(1, 2) + sent(2, 2) + sent(3, 2)[:9])
    metrics.write_text(scored(1, 0.5) + scored(2, 0.6))
    for _ in range(2):
        seen.look()
        assert (seen.t, seen.score, seen.megabytes) == (2, 0.6, 4)
    ledger.write_text(sent(1, 2))
    metrics.write_text(scored(1, 0.5))
    seen.look()
    assert (seen.t, seen.score, seen.megabytes) == (1, 0.5, 2)


def test_a_cell_whose_run_went_back_and_past_the_mark_is_read_anew(tmp_path):
    seen, metrics = cell(tmp_path), tmp_path / "metrics.jsonl"
    metrics.write_text(scored(1, 0.5) + scored(2, 0.6))
    seen.look()
    metrics.write_text(scored(1, 0.123456789) + scored(2, 0.25) + scored(3, 0.75))
    seen.look()
    seen.look()
    assert (seen.t, seen.score) == (3, 0.75)


def test_runs_of_other_settings_do_not_come_into_one_table(tmp_path):
    """Methods and seeds that were there already stood beside the new ones, whatever rounds and data they had."""
    before = plan.Plan(("fedprox",), (0,), {"rounds": 50})
    plan.describe(tmp_path, before)
    plan.describe(tmp_path, plan.Plan(("fedavg",), (0,), {"rounds": 20}))  # nothing has begun
    plan.describe(tmp_path, before)
    (tmp_path / "fedprox--s0").mkdir()
    (tmp_path / "fedprox--s0" / "metrics.jsonl").write_text("")
    for other in (plan.Plan(("fedavg",), (0,), {"rounds": 20}), plan.Plan(("fedprox",), (1,), {"rounds": 20})):
        with pytest.raises(StateError, match=f"E112 {tmp_path} holds another run: rounds was 50, is 20 now"):
            plan.describe(tmp_path, other)
    assert plan.described(tmp_path).settings["rounds"] == 50
    further = {"rounds": 50, "set": {"scaffold": {"weighted": True}}, "workers": 2}
    plan.describe(tmp_path, plan.Plan(("fedprox", "scaffold"), (0, 1), further))
    assert plan.described(tmp_path).methods == ("fedprox", "scaffold")


def test_the_time_left_is_told_by_the_pace_of_this_sitting(tmp_path, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    one, other = cell(tmp_path / "a", rounds=50), cell(tmp_path / "b", rounds=50)
    one.t = 40
    shown = Progress([one, other], quiet=True)
    shown.look(shown.runs)
    assert shown.table().caption == "40% done"
    now, one.t = 1030.0, 50
    assert shown.table().caption == "50% done, 2:30 left"


def test_a_run_in_use_is_not_discarded(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
    with Lock(tmp_path / "b"), pytest.raises(StateError, match="E110"):
        discard([tmp_path / "a", tmp_path / "b"])
    assert [p.name for p in tmp_path.iterdir()] == ["b"]
