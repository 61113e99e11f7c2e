"""Trackers hold every score of metrics.jsonl in one entry, also of a run that was interrupted; where one is not
installed, a sentence says so before anything trains."""

from __future__ import annotations

import json
import sys
from collections import namedtuple
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import unskew
from unskew.errors import StateError, UsageError
from unskew.runs.trackers import MLflow, scalars

SETTINGS: dict[str, Any] = {
    "rounds": 3, "epochs": 1, "workers": 1, "lanes": "1", "skew": "iid", "clients": 3, "model": "mlp"
}  # fmt: skip
DATA = (np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32), np.arange(60) % 3)
Metric = namedtuple("Metric", "key value timestamp step")


class Interrupted(unskew.Callback):
    """Fails at the end of a round, whose scores are handed over and which no checkpoint has."""

    def __init__(self, t: int):
        self.t = t

    def evaluated(self, run, rows):
        if run.t == self.t:
            raise ValueError("interrupted")


class Store:
    """What a tracker's package is told. scores: (name, value, round); entries: the state of each."""

    def __init__(self) -> None:
        self.scores: list[tuple[str, float, int]] = []
        self.entries: dict[str, str] = {}
        self.settings: dict[str, str] = {}
        self.calls: list[int] = []

    # MLflow

    def client(self, tracking_uri: str) -> Store:
        self.uri = tracking_uri
        return self

    def get_experiment_by_name(self, name: str) -> Any:
        return None

    def create_experiment(self, name: str) -> str:
        return name

    def create_run(self, experiment: str, run_name: str) -> Any:
        number = f"{run_name} {len(self.entries)}"
        self.entries[number] = "RUNNING"
        return SimpleNamespace(info=SimpleNamespace(run_id=number))

    def update_run(self, number: str, status: str) -> None:
        self.entries[number] = status

    set_terminated = update_run

    def log_batch(self, number: str, metrics: Any = (), params: Any = ()) -> None:
        assert self.entries[number] == "RUNNING"
        self.calls.append(len([*metrics, *params]))
        self.scores += [(m.key.replace(".client/", "@client/"), m.value, m.step) for m in metrics]
        self.settings |= dict(params)

    # Weights & Biases

    def init(self, **given: Any) -> Any:
        number = given["id"] or f"r {len(self.entries)}"
        self.entries[number], self.mode, self.settings = "RUNNING", given["mode"], given["config"]
        return SimpleNamespace(
            id=number,
            define_metric=lambda name, step_metric: None,
            log=lambda row: self.scores.extend((n, v, row["round"]) for n, v in row.items() if n != "round"),
            finish=lambda exit_code: self.update_run(number, "FAILED" if exit_code else "FINISHED"),
        )

    # TensorBoard, whose process hides what stands there from a round on

    def writer(self, folder: str, purge_step: int) -> Any:
        self.entries[folder] = "RUNNING"
        self.scores = [score for score in self.scores if score[2] < purge_step]
        return SimpleNamespace(
            add_scalar=lambda *score: self.scores.append(score),
            add_text=lambda title, table: self.settings.update(method=table.split("| method | ")[1][:6]),
            flush=lambda: None,
            close=lambda: self.update_run(folder, "FINISHED"),
        )


@pytest.fixture
def store(monkeypatch) -> Store:
    """In place of all three packages."""
    told = Store()
    entities = SimpleNamespace(Metric=Metric, Param=lambda name, value: (name, value))
    for name, parts in {
        "mlflow": {"MlflowClient": told.client, "entities": entities},
        "wandb": {"init": told.init, "Settings": dict},
        "tensorboard": {},
        "torch.utils.tensorboard": {"SummaryWriter": told.writer},
    }.items():
        module = ModuleType(name)
        module.__spec__ = SimpleNamespace(name=name)  # type: ignore[assignment]
        vars(module).update(parts)
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("MLFLOW_TRACKING_URI", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    return told


def trained(tracker: str, folder: Path, *callbacks: unskew.Callback) -> set[tuple[str, float, int]]:
    """Every score of the run's metrics.jsonl, by what trackers call it, but for what took time."""
    unskew.run("fedavg", DATA, name="r", folder=folder, track=tracker, callbacks=callbacks, **SETTINGS)
    rows = [json.loads(line) for line in (folder / "r" / "metrics.jsonl").read_text().splitlines()]
    return timeless(scalars(rows))


def timeless(rows: Any) -> set[tuple[str, float, int]]:
    return {(name, value, t) for name, value, t in rows if not name.endswith("seconds")}


@pytest.mark.parametrize("tracker", ["mlflow", "wandb", "tensorboard"])
def test_an_interrupted_run_is_one_entry_with_every_score(tracker, tmp_path, store):
    with pytest.raises(StateError, match="E127"):
        trained(tracker, tmp_path, Interrupted(1))
    assert {*store.entries.values()} == {"FINISHED" if tracker == "tensorboard" else "FAILED"}
    scores = trained(tracker, tmp_path)
    assert timeless(store.scores) == scores
    assert [*store.entries.values()] == ["FINISHED"]
    assert store.settings["method"] == "fedavg"
    if tracker == "mlflow":
        assert store.uri == (tmp_path / "mlruns").as_uri()
    if tracker == "wandb":
        assert store.mode == "offline"


def test_wandb_is_online_and_mlflow_elsewhere_where_the_environment_says_so(tmp_path, store, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    trained("wandb,mlflow", tmp_path)
    assert (store.mode, store.uri) == ("online", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:10")
    trained("mlflow", tmp_path)
    assert len(store.entries) == 3  # another store has an entry of its own


@pytest.mark.parametrize("tracker", ["tensorboard", "wandb"])
def test_a_tracker_writes_through_no_link_in_the_folder_of_the_run(tracker, tmp_path, store):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / tracker).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=f"E161 .*{tracker} is a link, and nothing is written through it"):
        trained(tracker, tmp_path)


def test_mlflow_is_told_no_more_at_once_than_it_takes(tmp_path, store):
    settings = {"lr": 0.5, "note": "x" * 600, **{f"setting{i}": i for i in range(120)}}
    run: Any = SimpleNamespace(
        t=0, folder=tmp_path, method="fedavg", settings=SimpleNamespace(as_dict=lambda: settings)
    )
    tracker, row = MLflow(), {"t": 1, "scope": "global@client", "metric": "accuracy", "value": 0.5}
    tracker.begun(run)
    tracker.evaluated(run, [{**row, "client": k} for k in range(2500)])
    assert store.calls == [100, 23, 1000, 1000, 500]
    assert len(store.settings["note"]) == 500
    assert store.scores[2499] == ("global@client/accuracy/client-2499", 0.5, 1)


def test_the_event_file_of_tensorboard_holds_every_score(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    scores = trained("tensorboard", tmp_path)
    events = EventAccumulator(str(tmp_path / "r" / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    kept = {(tag, e.value, e.step) for tag in events.Tags()["scalars"] for e in events.Scalars(tag)}
    assert timeless(kept) == {(name, np.float32(value).item(), t) for name, value, t in scores}


@pytest.mark.parametrize(
    ("tracker", "package"), [("tensorboard", "tensorboard"), ("mlflow", "mlflow-skinny"), ("wandb", "wandb")]
)
def test_a_tracker_that_is_not_installed_is_told_before_training(tracker, package, tmp_path, monkeypatch):
    for name in [tracker, *(n for n in sys.modules if n.partition(".")[0] == tracker)]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=f"E133 tracking needs {package}: pip install"):
        trained(tracker, tmp_path)
    assert not (tmp_path / "r" / "state.safetensors").exists()


def test_an_unknown_tracker_is_refused_and_a_run_in_memory_too(store):
    with pytest.raises(UsageError, match=r"E109 track names 'tensorbord', .*Did you mean 'tensorboard'"):
        unskew.run("fedavg", DATA, track="mlflow,tensorbord", **SETTINGS)
    with pytest.raises(UsageError, match="E109 track writes files; give run"):
        unskew.run("fedavg", DATA, track="tensorboard", **SETTINGS)
