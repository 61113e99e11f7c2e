"""Callbacks that hand every score of a run to a tracker, by the names of the setting `track`.

    tensorboard    an event file in `RUN/tensorboard`; `tensorboard --logdir runs` shows all runs
    mlflow         a store next to the run's folder, `runs/mlruns`, or the server at MLFLOW_TRACKING_URI;
                   `mlflow ui --backend-store-uri runs/mlruns` shows all runs
    wandb          files in `RUN/wandb`, which `wandb sync` can send; offline unless WANDB_MODE says otherwise

A resumed run continues its entry, with the number in mlflow.json or wandb.json. After a resumption, rounds
without a checkpoint are repeated with equal rows, which a store then has twice.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from unskew.errors import MissingPackage, UsageError
from unskew.records import checkpoints
from unskew.round.callback import Callback, Progress
from unskew.system import disk

NAME = "unskew"
"""The name of the experiment or project in a store."""
MOST_METRICS, MOST_PARAMS, MOST_SIGNS = 1000, 100, 500
"""MLflow's limits: metrics and parameters per call, and characters per parameter."""


def scalars(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, float, int]]:
    """(name, value, round) of every row of metrics.jsonl: `global/accuracy`, or
    `global@client/accuracy/client-3` for a single client."""
    for row in rows:
        name = f"{row['scope']}/{row['metric']}"
        of_client = "" if row["client"] is None else f"/client-{row['client']}"
        yield name + of_client, float(row["value"]), int(row["t"])


def package(name: str, install: str) -> Any:
    """Import a tracker's package. install: the name to install. Raises UsageError (E133) if it is not
    installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingPackage("tracking", install, instead="or leave track out") from error


def _folder_of(run: Progress) -> Path:
    """The run's folder. Raises UsageError (E109) for a run in memory."""
    if run.folder is None:
        raise UsageError(
            "E109", "track writes files; give run(..., name='my-run') to have a folder for them."
        )
    return run.folder


def _settings_text(run: Progress) -> dict[str, str]:
    """The run's settings without empty values, as text by name."""
    values = {**run.settings.as_dict(), "method": run.method}
    return {name: str(value) for name, value in values.items() if value not in (None, {}, "")}


def _entry_in(path: Path, store: str) -> str:
    """The store's name for the run, which a file in the run's folder records; "" without an entry there.
    store: the location of the entry; a file for another store is ignored."""
    known: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return str(known.get("run", "")) if known.get("store") == store else ""


def _keep_entry(path: Path, store: str, number: str) -> None:
    """Record the store's name for the run."""
    disk.replace(path, json.dumps({"store": store, "run": number}))


class TensorBoard(Callback):
    """Writes scalars through torch's SummaryWriter, and the settings as text."""

    name = "tensorboard"

    def __init__(self) -> None:
        package("tensorboard", "tensorboard")
        self._module = package("torch.utils.tensorboard", "tensorboard")

    def begun(self, run: Progress) -> None:
        # hide what an earlier process wrote for rounds after the checkpoint, because these are repeated
        first = run.t + 1 if (_folder_of(run) / checkpoints.LATEST).is_file() else 0
        folder = disk.folder_below(_folder_of(run) / self.name)
        self._writer = self._module.SummaryWriter(str(folder), purge_step=first)
        if not first:
            table = "\n".join(f"| {name} | {value} |" for name, value in _settings_text(run).items())
            self._writer.add_text("settings", f"| setting | value |\n|---|---|\n{table}")

    def evaluated(self, run: Progress, rows: Sequence[Mapping[str, Any]]) -> str | None:
        for score in scalars(rows):
            self._writer.add_scalar(*score)
        self._writer.flush()
        return None

    def ended(self, run: Progress, why: str) -> None:
        if hasattr(self, "_writer"):
            self._writer.close()


class MLflow(Callback):
    """Logs scores through MLflow's client, and the settings as parameters. MLflow's names exclude '@', so the
    scope `global@client` is called `global.client` there."""

    name = "mlflow"

    def __init__(self) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._mlflow: Any = package("mlflow", "mlflow-skinny")
        self._number = ""

    def begun(self, run: Progress) -> None:
        folder = _folder_of(run)
        uri = os.environ.get("MLFLOW_TRACKING_URI") or (folder.parent / "mlruns").resolve().as_uri()
        self._client = self._mlflow.MlflowClient(tracking_uri=uri)
        if number := _entry_in(folder / "mlflow.json", uri):
            self._number = number
            self._client.update_run(number, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name(NAME)
        place = experiment.experiment_id if experiment else self._client.create_experiment(NAME)
        self._number = self._client.create_run(place, run_name=folder.name).info.run_id
        _keep_entry(folder / "mlflow.json", uri, self._number)
        entities = self._mlflow.entities
        params = (entities.Param(name, value[:MOST_SIGNS]) for name, value in _settings_text(run).items())
        while some := [*islice(params, MOST_PARAMS)]:
            self._client.log_batch(self._number, params=some)

    def evaluated(self, run: Progress, rows: Sequence[Mapping[str, Any]]) -> str | None:
        now, metric = int(time.time() * 1000), self._mlflow.entities.Metric
        metrics = (metric(name.replace("@", "."), value, now, t) for name, value, t in scalars(rows))
        while some := [*islice(metrics, MOST_METRICS)]:
            self._client.log_batch(self._number, metrics=some)
        return None

    def ended(self, run: Progress, why: str) -> None:
        if self._number:
            self._client.set_terminated(self._number, status="FINISHED" if why == "done" else "FAILED")


class WandB(Callback):
    """Logs every round's scores with the round number as the axis of their charts. Offline, each process
    writes its own file, and `wandb sync` joins these into one entry."""

    name = "wandb"

    def __init__(self) -> None:
        self._wandb: Any = package("wandb", "wandb")

    def begun(self, run: Progress) -> None:
        if run.t >= run.rounds:  # a finished run has no more rows
            return
        folder = _folder_of(run)
        disk.folder_below(folder / self.name)
        number = _entry_in(folder / "wandb.json", NAME)
        self._run = self._wandb.init(
            project=NAME,
            name=folder.name,
            id=number or None,
            resume="allow" if number else None,
            dir=str(folder),
            config=_settings_text(run),
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=self._wandb.Settings(silent=True, console="off"),
        )
        _keep_entry(folder / "wandb.json", NAME, str(self._run.id))
        self._run.define_metric("*", step_metric="round")

    def evaluated(self, run: Progress, rows: Sequence[Mapping[str, Any]]) -> str | None:
        by_round: dict[int, dict[str, float]] = defaultdict(dict)
        for name, value, t in scalars(rows):
            by_round[t][name] = value
        for t, values in by_round.items():
            self._run.log({"round": t, **values})
        return None

    def ended(self, run: Progress, why: str) -> None:
        if hasattr(self, "_run"):
            self._run.finish(exit_code=0 if why == "done" else 1)


TRACKERS: dict[str, type[Callback]] = {kind.name: kind for kind in (TensorBoard, MLflow, WandB)}
"""The trackers by name."""
