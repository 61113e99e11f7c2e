"""The built-in callbacks, checks of users' callbacks, and the callbacks of a run's settings.

`EarlyStopping` ends a run when its score stops improving, and `KeepBest` keeps the model of the best round.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unskew.config import Settings
from unskew.core.user_parts import check_class
from unskew.errors import UsageError, excerpt
from unskew.round.callback import Callback, Progress
from unskew.runs.trackers import TRACKERS
from unskew.scores import Kind, kind


class EarlyStopping(Callback):
    """Ends the run when a score has not improved on its best value by more than `least` for `patience`
    rounds.

    Rounds count up to the last evaluated one. scope, metric: of the score; by default the main score of the
    global model, or the clients' mean if there is none. The score is on the test set, unless the setting
    `validation` holds samples out. It reads the record of the run, so a resumed run ends in the same round.
    """

    def __init__(self, patience: int, scope: str = "", metric: str = "", least: float = 0.0):
        if patience < 1:
            raise UsageError("E109", f"patience is a number of rounds, at least 1; got {patience}.")
        self.patience, self.scope, self.metric, self.least = patience, scope, metric, least

    def evaluated(self, run: Progress, rows: Sequence[Mapping[str, Any]]) -> str | None:
        scope, metric = (self.scope, self.metric or run.main_score) if self.scope else main_series(run)
        which = score_kind(run, metric)
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


def score_kind(run: Progress, metric: str) -> Kind:
    """The kind of a run's score; `mean` and `worst` are of the main score's kind."""
    return kind(run.main_score if metric in ("mean", "worst") else metric)


def main_series(run: Progress) -> tuple[str, str]:
    """(scope, metric) of the score by which the models of a run are compared."""
    if run.series("global", run.main_score)[0]:
        return "global", run.main_score
    return "personal@client", "mean"


BEST_FILE = "best.safetensors"


class KeepBest(Callback):
    """Writes the model to best.safetensors in the run's folder whenever its score is the best so far.

    The score is the global model's main score, or the clients' mean if there is none, on the test set unless
    the setting `validation` holds samples out. `unskew.load(RUN, best=True)` reads the file.
    """

    def evaluated(self, run: Progress, rows: Sequence[Mapping[str, Any]]) -> str | None:
        scope, metric = main_series(run)
        rounds, values = run.series(scope, metric)
        trained = [v for t, v in zip(rounds, values) if t > 0]
        which = score_kind(run, metric)
        before = which.best([*trained[:-1], which.nothing])
        if trained and rounds[-1] == run.t and which.better(trained[-1], before):
            run.save(BEST_FILE, {"score": trained[-1], "scope": scope, "metric": metric})
        return None


CALLBACK_HOOKS = {
    n: hook for n, hook in vars(Callback).items() if inspect.isfunction(hook) and not n.startswith("_")
}
"""The hooks of a callback by name."""


def check_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """The callbacks as a tuple.

    Raises UsageError: E109 for anything else, and for a callback without hooks; E121 for a hook that is
    misspelt or cannot be called.
    """
    listed = tuple(callbacks) if isinstance(callbacks, Iterable) else (callbacks,)
    for callback in listed:
        if not isinstance(callback, Callback) or not isinstance(callbacks, Iterable):
            text = "callbacks take a list of unskew.Callback objects, such as [EarlyStopping(5)]"
            raise UsageError("E109", f"{text}; got {excerpt(callbacks)}.")
        mro = type(callback).__mro__
        for base in mro[: mro.index(Callback)]:
            if base.__module__.partition(".")[0] != "unskew":
                check_class(base, CALLBACK_HOOKS, ())
        if all(getattr(type(callback), hook) is getattr(Callback, hook) for hook in CALLBACK_HOOKS):
            text = f"the callback {callback.name} overrides none of {', '.join(CALLBACK_HOOKS)}"
            raise UsageError("E109", f"{text}, so no run would call it; name a method of it as one of these.")
    return listed


def callbacks_of(settings: Settings, folder: Path | None) -> list[Callback]:
    """The callbacks of a run's settings. folder: of the run; None if it is in memory.

    Raises UsageError: E109 for a callback that writes a file without a folder, E133 for a tracker that is not
    installed.
    """
    callbacks: list[Callback] = []
    if settings.patience:
        callbacks.append(EarlyStopping(settings.patience))
    if settings.keep_best:
        if folder is None:
            raise UsageError(
                "E109", "keep_best writes a file; give run(..., name='my-run') to have a folder for it."
            )
        callbacks.append(KeepBest())
    return [*callbacks, *(TRACKERS[name]() for name in settings.trackers)]
