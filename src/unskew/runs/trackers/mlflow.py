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
from unskew.runs.trackers.tracker import StoreEntry, folder_of, package, scalars, settings_text

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

    def begun(self, run: Progress) -> None:
        folder = folder_of(run)
        uri = os.environ.get("MLFLOW_TRACKING_URI") or (folder.parent / STORE).resolve().as_uri()
        self._client = self._mlflow.MlflowClient(tracking_uri=uri)
        self._entry = StoreEntry(folder, ENTRY, uri)
        if self._entry.number:
            self._client.update_run(self._entry.number, status="RUNNING")
        else:
            self._begin(run, folder.name)
        self._log(self._entry.missed())

    def _begin(self, run: Progress, name: str) -> None:
        """Create an entry with the settings. name: the name of the run in MLflow."""
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        number = experiment.experiment_id if experiment else self._client.create_experiment(EXPERIMENT)
        self._entry.begin(self._client.create_run(number, run_name=name).info.run_id)
        params = [
            self._mlflow.entities.Param(name, value[:MOST_SIGNS])
            for name, value in settings_text(run).items()
        ]
        for first in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(self._entry.number, params=params[first : first + MOST_PARAMS])

    def evaluated(self, run: Progress, rows: Sequence[Mapping[str, Any]]) -> str | None:
        self._log(self._entry.new(rows))
        return None

    def _log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        now, metric = int(time.time() * 1000), self._mlflow.entities.Metric
        named = ((name.replace("@", "."), value, now, t) for name, value, t in scalars(rows))
        while batch := [metric(*row) for row in islice(named, MOST_METRICS)]:
            self._client.log_batch(self._entry.number, metrics=batch)
        self._entry.has_all()

    def ended(self, run: Progress, why: str) -> None:
        if hasattr(self, "_entry") and self._entry.number:
            self._client.set_terminated(self._entry.number, status="FINISHED" if why == "done" else "FAILED")
