"""Ends a run whose score does not get better any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unskew.engine.callbacks.callback import Callback, Progress
from unskew.errors import UsageError
from unskew.scores import Kind, kind


class EarlyStopping(Callback):
    """Ends the run when a score has not been better than its best value by more than `least` for `patience` rounds.

    Rounds count up to the last one that was evaluated: nobody knows whether the score has risen since.

    scope, metric: of the score; by default the main score of the global model, or the clients' mean where there is none.
    The score is the test set's, unless the setting `validation` holds samples out. What it needs to know is in the record
    of the run, so a resumed run ends where it would have ended.
    """

    def __init__(self, patience: int, scope: str = "", metric: str = "", least: float = 0.0):
        if patience < 1:
            raise UsageError("E109", f"patience is a number of rounds, at least 1; got {patience}.")
        self.patience, self.scope, self.metric, self.least = patience, scope, metric, least

    def evaluated(self, run: Progress, rows: Sequence[Mapping[str, Any]]) -> str | None:
        scope, metric = (self.scope, self.metric or run.main_score) if self.scope else judged(run)
        which = kind_of(run, metric)
        best, since, last = which.nothing, 0, 0
        for last, value in zip(*run.series(scope, metric)):
            if last > 0 and which.ahead(value, best) > self.least:  # never with NaN
                best, since = value, last
            since = since or last
        if not since or last - since < self.patience:
            return None
        if best == which.nothing:
            return f"{scope} {metric} has been no finite number since round {since}"
        way = "fallen below" if which.lower else "risen above"
        return f"{scope} {metric} has not {way} {best:.4g} since round {since}"


def kind_of(run: Progress, metric: str) -> Kind:
    """What a score of a run is; `mean` and `worst` are those of its main score."""
    return kind(run.main_score if metric in ("mean", "worst") else metric)


def judged(run: Progress) -> tuple[str, str]:
    """(scope, metric) of the score by which models of a run are told apart."""
    if run.series("global", run.main_score)[0]:
        return "global", run.main_score
    return "personal@client", "mean"
