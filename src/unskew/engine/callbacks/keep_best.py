"""Keeps the global model of the best round beside that of the last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unskew.engine.callbacks.callback import Callback, Progress
from unskew.engine.callbacks.early_stopping import judged, kind_of

BEST = "best.safetensors"


class KeepBest(Callback):
    """Writes the model to best.safetensors in the run's folder whenever its score is the best so far.

    The score is the global model's main one, or the clients' mean where there is none: the test set's, unless the setting
    `validation` holds samples out. `unskew.load(RUN, best=True)` reads the file.
    """

    def evaluated(self, run: Progress, rows: Sequence[Mapping[str, Any]]) -> str | None:
        scope, metric = judged(run)
        rounds, values = run.series(scope, metric)
        trained = [v for t, v in zip(rounds, values) if t > 0]
        which = kind_of(run, metric)
        before = which.best([*trained[:-1], which.nothing])
        if trained and rounds[-1] == run.t and which.better(trained[-1], before):
            run.save(BEST, {"score": trained[-1], "scope": scope, "metric": metric})
        return None
