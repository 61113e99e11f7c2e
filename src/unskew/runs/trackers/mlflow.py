"""MLflow: a store next to the run's folder, `runs/mlruns`, or the server at MLFLOW_TRACKING_URI.

`mlflow ui --backend-store-uri runs/mlruns` shows all runs. A resumed run continues its entry, with the number
in mlflow.json. MLflow's names exclude '@', so the scope `global@client` is called `global.client` there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from unskew.round.callback import Callback, Progress
from unskew.runs.trackers.tracker import entry_in, folder_of, keep_entry, package, scalars, settings_text

STORE, ENTRY = "mlruns", "mlflow.json"
EXPERIMENT = "unskew"
MOST_METRICS, MOST_PARAMS, MOST_SIGNS = 1000, 100, 500
"""MLflow's limits: metrics and parameters per call, and characters per parameter."""
QUIET = ("MLFLOW_ALLOW_FILE_STORE", "true")
"""The environment variable by which MLflow accepts a store of files."""


class Tracker(Callback):
    """Logs scores through MLflow's client, and the settings as parameters."""

    name = "mlflow"

    def __init__(self) -> None:
        os.environ.setdefault(*QUIET)
        self._mlflow: Any = package("mlflow", "mlflow-skinny")
        self._number = ""

    def begun(self, run: Progress) -> None:
        folder = folder_of(run)
        uri = os.environ.get("MLFLOW_TRACKING_URI") or (folder.parent / STORE).resolve().as_uri()
        self._client = self._mlflow.MlflowClient(tracking_uri=uri)
        if number := entry_in(folder / ENTRY, uri):
            self._number = number
            self._client.update_run(number, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        place = experiment.experiment_id if experiment else self._client.create_experiment(EXPERIMENT)
        self._number = self._client.create_run(place, run_name=folder.name).info.run_id
        keep_entry(folder / ENTRY, uri, self._number)
        texts = ((name, value[:MOST_SIGNS]) for name, value in settings_text(run).items())
        while batch := [self._mlflow.entities.Param(*text) for text in islice(texts, MOST_PARAMS)]:
            self._client.log_batch(self._number, params=batch)

    def evaluated(self, run: Progress, rows: Sequence[Mapping[str, Any]]) -> str | None:
        now, metric = int(time.time() * 1000), self._mlflow.entities.Metric
        named = ((name.replace("@", "."), value, now, t) for name, value, t in scalars(rows))
        while batch := [metric(*row) for row in islice(named, MOST_METRICS)]:
            self._client.log_batch(self._number, metrics=batch)
        return None

    def ended(self, run: Progress, why: str) -> None:
        if self._number:
            self._client.set_terminated(self._number, status="FINISHED" if why == "done" else "FAILED")
