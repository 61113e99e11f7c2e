"""Trackers hold every score of metrics.jsonl; where one is not installed, a sentence says so before anything
trains."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import unskew
from unskew.errors import UsageError
from unskew.runs.trackers.tracker import scalars

SETTINGS = {"rounds": 2, "epochs": 1, "workers": 1, "lanes": "1", "skew": "iid", "clients": 3, "model": "mlp"}
DATA = (np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32), np.arange(60) % 3)


def tracked(tracker: str, folder: Path) -> Counter[tuple[str, float, int]]:
    """Trains a run, and returns every score of its metrics.jsonl, by what trackers call it."""
    unskew.run("fedavg", DATA, name="r", folder=folder, track=tracker, **SETTINGS)  # type: ignore[arg-type]
    rows = [json.loads(line) for line in (folder / "r" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) > 20
    return Counter((name, np.float32(value).item(), t) for name, value, t in scalars(rows))


def test_the_event_file_of_tensorboard_holds_every_score(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    scores = tracked("tensorboard", tmp_path)
    events = EventAccumulator(str(tmp_path / "r" / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    kept = Counter((tag, e.value, e.step) for tag in events.Tags()["scalars"] for e in events.Scalars(tag))
    assert kept == scores


def test_the_store_of_mlflow_holds_every_score(tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    scores = tracked("mlflow", tmp_path)
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    number = json.loads((tmp_path / "r" / "mlflow.json").read_text())["run"]
    run = client.get_run(number)
    history = [m for key in run.data.metrics for m in client.get_metric_history(number, key)]
    kept = Counter(
        (m.key.replace(".client/", "@client/"), np.float32(m.value).item(), m.step) for m in history
    )
    assert kept == scores
    assert (run.info.status, run.data.params["method"]) == ("FINISHED", "fedavg")


def test_the_file_of_wandb_holds_every_score(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.delenv("WANDB_MODE", raising=False)
    scores = tracked("wandb", tmp_path)
    (file,) = (tmp_path / "r" / "wandb").glob("offline-run-*/*.wandb")

    def kept() -> Counter[tuple[str, float, int]]:
        of_file = Counter[tuple[str, float, int]]()
        for data in records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            items = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
            t = items.pop("round", 0)
            of_file += Counter(
                (k, np.float32(v).item(), t) for k, v in items.items() if not k.startswith("_")
            )
        return of_file

    until = (
        time.monotonic() + 10
    )  # wandb writes in a process of its own, which may be some milliseconds behind
    while kept() != scores and time.monotonic() < until:
        time.sleep(0.02)
    assert kept() == scores


def records(log: bytes) -> Iterator[bytes]:
    """The records of a .wandb file: 7 bytes, then blocks of 32 KiB whose pieces say their checksum, length
    and place."""
    at, whole = 7, b""
    while at + 7 <= len(log):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, place = int.from_bytes(log[at + 4 : at + 6], "little"), log[at + 6]
        if not place:
            return
        whole += log[at + 7 : at + 7 + length]
        at += 7 + length
        if place in (1, 4):  # whole, or its last piece
            yield whole
            whole = b""


@pytest.mark.parametrize(
    ("tracker", "package"), [("tensorboard", "tensorboard"), ("mlflow", "mlflow-skinny"), ("wandb", "wandb")]
)
def test_a_tracker_that_is_not_installed_is_told_before_anything_trains(
    tracker, package, tmp_path, monkeypatch
):
    for name in [tracker, *(n for n in sys.modules if n.partition(".")[0] == tracker)]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=f"E133 tracking needs {package}: pip install"):
        tracked(tracker, tmp_path)
    assert not (tmp_path / "r" / "state.safetensors").exists()


def test_an_unknown_tracker_is_refused_and_a_run_in_memory_too():
    with pytest.raises(UsageError, match=r"E109 track names 'tensorbord', .*Did you mean 'tensorboard'"):
        unskew.run("fedavg", DATA, track="mlflow,tensorbord", **SETTINGS)  # type: ignore[arg-type]


def test_what_a_score_is_called():
    rows = [
        {"t": 3, "scope": "global", "client": None, "metric": "accuracy", "value": 0.5},
        {"t": 3, "scope": "global@client", "client": 7, "metric": "accuracy", "value": 1},
    ]
    assert list(scalars(rows)) == [("global/accuracy", 0.5, 3), ("global@client/accuracy/client-7", 1.0, 3)]
