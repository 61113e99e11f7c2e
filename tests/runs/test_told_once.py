"""A run that was interrupted is one entry in every tracker's store, which is told of each round once."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import unskew
from tests.runs import stores
from unskew.errors import StateError, UsageError
from unskew.runs.callbacks import EarlyStopping, KeepBest, callbacks_of
from unskew.runs.trackers.tracker import StoreEntry, scalars

SETTINGS: dict[str, Any] = {
    "rounds": 3, "epochs": 1, "workers": 1, "lanes": "1", "skew": "iid", "clients": 3, "model": "mlp"
}  # fmt: skip
DATA = (np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32), np.arange(60) % 3)
ROUNDS = [0, 1, 2]
"""Those at whose end a run is interrupted: the scores are handed over, and the checkpoint is not written."""


class Interrupted(unskew.Callback):
    def __init__(self, t: int):
        self.t = t

    def evaluated(self, run, rows):
        if run.t == self.t:
            raise ValueError("interrupted")


def trained(tracker: str, folder: Path, *callbacks: unskew.Callback) -> Counter[tuple[str, float, int]]:
    """Every score of the run's metrics.jsonl, by what trackers call it, but for what took time."""
    unskew.run("fedavg", DATA, name="r", folder=folder, track=tracker, callbacks=callbacks, **SETTINGS)
    rows = [json.loads(line) for line in (folder / "r" / "metrics.jsonl").read_text().splitlines()]
    return timeless(scalars(rows))


def timeless(rows: Any) -> Counter[tuple[str, float, int]]:
    return Counter((name, value, t) for name, value, t in rows if not name.endswith("seconds"))


def interrupted(tracker: str, folder: Path, t: int) -> Counter[tuple[str, float, int]]:
    """As `trained`, of a run that was interrupted and goes on, and is then asked for once more."""
    with pytest.raises(StateError, match="E127"):
        trained(tracker, folder, Interrupted(t))
    trained(tracker, folder)
    return trained(tracker, folder)


@pytest.mark.parametrize("t", ROUNDS)
def test_mlflow_has_one_entry_and_every_score_of_it_once(t, tmp_path, monkeypatch):
    store = stores.mlflow(monkeypatch)
    scores = interrupted("mlflow", tmp_path, t)
    told = timeless(
        (key.replace(".client/", "@client/"), value, step) for key, value, step, _ in store.metrics
    )
    assert told == scores
    assert (store.names, store.status) == ({"run 0": "r"}, {"run 0": "FINISHED"})
    assert {*store.uris} == {(tmp_path / "mlruns").as_uri()}
    assert ("method", "fedavg", "run 0") in store.params
    assert len(store.params) == len({key for key, _, _ in store.params})


@pytest.mark.parametrize("t", ROUNDS)
def test_wandb_has_one_entry_and_every_score_of_it_once(t, tmp_path, monkeypatch):
    store = stores.wandb(monkeypatch)
    scores = interrupted("wandb", tmp_path, t)
    told = [
        (name, value, row["round"]) for row in store.logged for name, value in row.items() if name != "round"
    ]
    assert timeless(told) == scores
    assert [(one["id"], one["resume"]) for one in store.begun] == [(None, None), ("entry1", "allow")]
    assert (store.codes, {*store.axes}) == ([1, 0], {("*", "round")})
    first = store.begun[0]
    assert (first["mode"], first["project"], first["name"], first["dir"]) == (
        "offline",
        "unskew",
        "r",
        str(tmp_path / "r"),
    )
    assert first["config"]["method"] == "fedavg"
    assert first["settings"] == {"silent": True, "console": "off"}


def test_wandb_is_online_only_where_its_mode_says_so(tmp_path, monkeypatch):
    store = stores.wandb(monkeypatch)
    monkeypatch.setenv("WANDB_MODE", "online")
    trained("wandb", tmp_path)
    assert store.begun[0]["mode"] == "online"


@pytest.mark.parametrize("t", ROUNDS)
def test_tensorboard_shows_every_score_once(t, tmp_path, monkeypatch):
    store = stores.tensorboard(monkeypatch)
    assert timeless(store.scalars) != interrupted("tensorboard", tmp_path, t) == timeless(store.scalars)
    assert ({*store.folders}, store.open) == ({str(tmp_path / "r" / "tensorboard")}, 0)
    (title, table), *again = store.texts
    assert (title, len(again)) == ("settings", 1 - min(t, 1))  # a run without a checkpoint begins anew
    assert table.startswith("| setting | value |\n|---|---|\n")
    assert "\n| method | fedavg |" in table


@pytest.mark.parametrize("tracker", ["tensorboard", "wandb"])
def test_a_tracker_writes_through_no_link_in_the_folder_of_the_run(tracker, tmp_path, monkeypatch):
    getattr(stores, tracker)(monkeypatch)
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(StateError, match="E127"):
        trained(tracker, tmp_path, Interrupted(1))
    place = tmp_path / "r" / tracker
    place.rmdir()
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=f"E161 .*{tracker} is a link, and nothing is written through it"):
        trained(tracker, tmp_path)


def test_mlflow_is_told_no_more_at_once_than_it_takes(tmp_path, monkeypatch):
    store = stores.mlflow(monkeypatch)
    tracker = _of("mlflow")
    run = _progress(tmp_path / "r", lr=0.5, note="x" * 600, **{f"setting{i}": i for i in range(120)})
    tracker.begun(run)
    rows = [
        {"t": 1, "scope": "global@client", "client": k, "metric": "accuracy", "value": 0.5}
        for k in range(2500)
    ]
    run.t = 1
    tracker.evaluated(run, rows)
    assert store.calls == [100, 23, 1000, 1000, 500]
    assert {len(value) for key, value, _ in store.params if key == "note"} == {500}
    assert store.metrics[2499] == ("global.client/accuracy/client-2499", 0.5, 1, "run 0")


def test_a_store_that_an_address_names_has_an_entry_of_its_own(tmp_path, monkeypatch):
    store = stores.mlflow(monkeypatch)
    trained("mlflow", tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert StoreEntry(tmp_path / "r", "mlflow.json", "http://127.0.0.1:9").number == ""
    trained("mlflow", tmp_path)
    assert store.uris[-1] == "http://127.0.0.1:9"
    assert len(store.names) == 2
    assert len(store.experiments) == 1


def test_a_run_that_fails_is_no_finished_one(tmp_path, monkeypatch):
    board, flow, bias = (make(monkeypatch) for make in (stores.tensorboard, stores.mlflow, stores.wandb))
    with pytest.raises(StateError, match="E127"):
        trained("tensorboard,mlflow,wandb", tmp_path, Interrupted(2))
    assert (board.open, flow.status, bias.codes) == (0, {"run 0": "FAILED"}, [1])


def rows_of(*rounds: int) -> list[dict[str, Any]]:
    return [{"t": t, "scope": "global", "client": None, "metric": "accuracy", "value": 0.5} for t in rounds]


def test_an_entry_counts_the_rows_that_its_store_has(tmp_path):
    def written(*rounds: int) -> None:
        (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows_of(*rounds)))

    entry = StoreEntry(tmp_path, "store.json", "here")
    assert (entry.number, entry.missed(), entry.new(rows_of(0))) == ("", [], rows_of(0))
    entry.begin("7")
    entry.has_all()
    assert entry.new(rows_of(1, 2)) == rows_of(1, 2)
    assert (again := StoreEntry(tmp_path, "store.json", "here")).number == "7"
    assert again.new(rows_of(0)) == []  # the run begins anew, and the store has this round
    assert again.new(rows_of(1, 2)) == rows_of(1, 2)
    written(0, 1, 2)
    later = StoreEntry(tmp_path, "store.json", "here")
    assert later.missed() == rows_of(1, 2)  # the run has come further than the store was told
    assert later.new(rows_of(3)) == rows_of(3)
    later.has_all()
    assert later.missed() == []
    written(0, 1)
    back = StoreEntry(tmp_path, "store.json", "here")  # cut back to its checkpoint
    assert (back.missed(), back.new(rows_of(2, 3, 4)), back.new(rows_of(5))) == ([], rows_of(4), rows_of(5))
    elsewhere = StoreEntry(tmp_path, "store.json", "there")
    assert (elsewhere.number, elsewhere.missed()) == ("", rows_of(0, 1))
    (tmp_path / "store.json").write_text(
        json.dumps({"store": "here", "run": "7"})
    )  # as it was before rows were counted
    assert StoreEntry(tmp_path, "store.json", "here").missed() == []


def test_a_tracker_that_comes_later_is_told_of_the_rounds_before(tmp_path, monkeypatch):
    store = stores.mlflow(monkeypatch)
    with pytest.raises(StateError, match="E127"):
        unskew.run("fedavg", DATA, name="r", folder=tmp_path, callbacks=[Interrupted(2)], **SETTINGS)
    scores = trained("mlflow", tmp_path)
    told = timeless(
        (key.replace(".client/", "@client/"), value, step) for key, value, step, _ in store.metrics
    )
    assert told == scores


def test_what_wandb_lost_when_its_process_was_killed_is_written_again(tmp_path, monkeypatch):
    """Offline it writes most when it is closed, so nothing counts as there before; online every round
    does."""
    for mode, again in (("offline", [0, 1]), ("online", [])):
        store = stores.wandb(monkeypatch)
        monkeypatch.setenv("WANDB_MODE", mode)
        folder = tmp_path / mode
        run, killed = _progress(folder), _of("wandb")
        killed.begun(run)
        for run.t in (0, 1):
            killed.evaluated(run, rows_of(run.t))
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows_of(0, 1)))
        after = _of("wandb")
        store.logged.clear()
        after.begun(run)
        assert [row["round"] for row in store.logged] == again
        run.t = 2
        after.evaluated(run, rows_of(2))
        after.ended(run, "done")
        assert [row["round"] for row in store.logged] == [*again, 2]
        store.logged.clear()
        last = _of("wandb")
        run.rounds = 3
        last.begun(run)
        assert store.logged == []
        run.t = 3
        done = _of("wandb")
        done.begun(run)
        assert len(store.begun) == 3  # a run that is done has no further file


def test_what_settings_ask_for_is_chosen_once_each_and_in_order(tmp_path, monkeypatch):
    for make in (stores.tensorboard, stores.mlflow):
        make(monkeypatch)
    settings = unskew.run("fedavg", DATA, **{**SETTINGS, "rounds": 1}).settings
    assert callbacks_of(settings, None) == []
    asked = settings.replace(patience=4, keep_best=True, track="mlflow,tensorboard")
    listed = callbacks_of(asked, tmp_path)
    assert [type(one) for one in listed[:2]] == [EarlyStopping, KeepBest]
    assert listed[0].patience == 4  # type: ignore[attr-defined]
    assert [one.name for one in listed[2:]] == ["mlflow", "tensorboard"]
    with pytest.raises(UsageError, match="E109 keep_best writes a file"):
        callbacks_of(asked, None)
    (tmp_path / "pruning.json").write_text(
        json.dumps({"own": False, "startup": 1, "warmup": 1, "finished": []})
    )
    assert [one.name for one in callbacks_of(settings, tmp_path)] == ["pruning"]


def test_a_run_in_memory_has_no_folder_for_a_tracker(monkeypatch):
    stores.tensorboard(monkeypatch)
    with pytest.raises(UsageError, match="E109 track writes files; give run"):
        unskew.run("fedavg", DATA, track="tensorboard", **SETTINGS)


def _of(name: str) -> Any:
    return importlib.import_module(f"unskew.runs.trackers.{name}").Tracker()


def _progress(folder: Path | None, **settings: Any) -> Any:
    """A run as a tracker sees it, before its first round."""
    if folder:
        folder.mkdir(exist_ok=True)
    return SimpleNamespace(
        t=0, rounds=3, method="fedavg", folder=folder, settings=SimpleNamespace(as_dict=lambda: settings)
    )
