"""The callbacks that come with unskew, checks of those that a program gives, and the callbacks that settings
ask for.

`EarlyStopping` ends a run whose score does not get better, and `KeepBest` keeps the model of the best round.
`Pruning` ends a trial of a search that falls behind, by Optuna's median rule: from round `warmup` on, and
once `startup` trials have ended, a trial is ended whose best score so far is worse than the median of what
those had scored in the same round (Golovin et al., KDD 2017). The trials before it are in a file in the run's
folder, written before the run begins, so the decision depends on no clock and is the same after a kill.
"""

from __future__ import annotations

import importlib
import inspect
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from unskew.config import TRACKERS, Settings
from unskew.core.user_parts import check_class
from unskew.errors import StateError, UsageError, excerpt
from unskew.formats import specs
from unskew.round.callback import Callback, Progress
from unskew.scores import Kind, kind
from unskew.system import disk


class EarlyStopping(Callback):
    """Ends the run when a score has not been better than its best value by more than `least` for `patience`
    rounds.

    Rounds count up to the last one that was evaluated: nobody knows whether the score has risen since.

    scope, metric: of the score; by default the main score of the global model, or the clients' mean where
    there is none. The score is the test set's, unless the setting `validation` holds samples out. What it
    needs to know is in the record of the run, so a resumed run ends where it would have ended.
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
    """What a score of a run is; `mean` and `worst` are those of its main score."""
    return kind(run.main_score if metric in ("mean", "worst") else metric)


def main_series(run: Progress) -> tuple[str, str]:
    """(scope, metric) of the score by which models of a run are told apart."""
    if run.series("global", run.main_score)[0]:
        return "global", run.main_score
    return "personal@client", "mean"


BEST_FILE = "best.safetensors"


class KeepBest(Callback):
    """Writes the model to best.safetensors in the run's folder whenever its score is the best so far.

    The score is the global model's main one, or the clients' mean where there is none: the test set's, unless
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


PRUNING_FILE = "pruning.json"
"""In the folder of a trial."""


@dataclass(frozen=True)
class PruningRule:
    """What a trial is held against. own: score clients' own models rather than the global one. finished:
    (round, score) of every earlier trial that came to its end."""

    own: bool
    startup: int
    warmup: int
    finished: Sequence[Sequence[tuple[int, float]]] = field(default_factory=tuple)

    def write(self, folder: Path) -> None:
        """Into the folder of a trial that is about to begin, or of one that has, where it changes nothing."""
        folder.mkdir(parents=True, exist_ok=True)
        disk.replace(folder / PRUNING_FILE, json.dumps(asdict(self)))


def read_rule(folder: Path) -> PruningRule:
    """Raises StateError (E111) for a damaged file."""
    try:
        values = json.loads((folder / PRUNING_FILE).read_text())
        finished = [[(int(t), float(v)) for t, v in curve] for curve in values["finished"]]
        return PruningRule(bool(values["own"]), int(values["startup"]), int(values["warmup"]), finished)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise StateError("E111", f"{folder / PRUNING_FILE} cannot be read: {error}.") from None


class Pruning(Callback):
    """Ends a trial that falls behind."""

    name = "pruning"

    def __init__(self, rule: PruningRule):
        self.rule = rule

    def evaluated(self, run: Progress, rows: Sequence[Mapping[str, Any]]) -> str | None:
        scope, metric = trial_series(run, self.rule.own)
        curve = [(t, value) for t, value in zip(*run.series(scope, metric)) if t > 0]
        if not falls_behind(curve, self.rule, score_kind(run, metric).lower):
            return None
        return (
            f"its best {scope} {metric} is worse than the median of {len(self.rule.finished)} earlier trials"
        )


def trial_series(run: Progress, own: bool) -> tuple[str, str]:
    """(scope, metric) of the score that tells trials apart. own: clients' own models, where they are
    scored."""
    return (
        ("personal@client", "mean") if own and run.series("personal@client", "mean")[0] else main_series(run)
    )


def falls_behind(curve: Sequence[tuple[int, float]], rule: PruningRule, lower: bool) -> bool:
    """Whether a trial is to be ended after the last round of its curve. lower: whether less is better."""
    if not curve or curve[-1][0] < rule.warmup or len(rule.finished) < rule.startup:
        return False  # as Optuna says it, without loading it
    known = [(t, value) for t, value in curve if math.isfinite(value)]
    if not known:
        return True
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=0, n_warmup_steps=rule.warmup)
    study = optuna.create_study(direction="minimize" if lower else "maximize", pruner=pruner)
    for earlier in rule.finished:
        if values := {t: value for t, value in earlier if math.isfinite(value)}:
            study.add_trial(optuna.create_trial(value=list(values.values())[-1], intermediate_values=values))
    trial = study.ask()
    for t, value in known:
        trial.report(value, t)
    return trial.should_prune()


CALLBACK_HOOKS = {
    n: hook for n, hook in vars(Callback).items() if inspect.isfunction(hook) and not n.startswith("_")
}
"""By name, in the order in which they stand there."""


def check_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """The callbacks.

    Raises UsageError: E109 for what is none, and for one whose hooks nobody would call; E121 for a hook that
    is misspelt or cannot be called.
    """
    if isinstance(callbacks, Callback):
        raise UsageError("E109", f"callbacks take a list; write callbacks=[{type(callbacks).__name__}(...)].")
    if not isinstance(callbacks, Iterable):
        text = f"callbacks take a list of unskew.Callback objects, and {excerpt(callbacks, 40)} is none"
        raise UsageError("E109", f"{text}; write callbacks=[MyCallback()], or leave it out.")
    listed = tuple(callbacks)
    for callback in listed:
        if not isinstance(callback, Callback):
            what = (
                f"{callback.__name__} is a class; write {callback.__name__}()"
                if isinstance(callback, type)
                else ""
            )
            raise UsageError("E109", f"callbacks take unskew.Callback objects: {what or excerpt(callback)}.")
        _check_callback(callback)
    return listed


def _check_callback(callback: Callback) -> None:
    """Raises UsageError as `check_callbacks` does."""
    kinds = type(callback).__mro__
    for kind in kinds[: kinds.index(Callback)]:
        if kind.__module__.partition(".")[0] != "unskew":
            check_class(kind, CALLBACK_HOOKS, ())
    if not any(
        getattr(callback, hook) != getattr(Callback, hook).__get__(callback) for hook in CALLBACK_HOOKS
    ):
        text = (
            f"the callback {callback.name} overrides none of {', '.join(CALLBACK_HOOKS)}, so nothing of it"
            " would be called"
        )
        raise UsageError("E109", f"{text}; name a method of it as one of these.")


TRACKERS_PACKAGE = "unskew.runs.trackers"


def callbacks_of(settings: Settings, folder: Path | None) -> list[Callback]:
    """folder: of the run, None if it is kept in memory.

    Raises UsageError: E116 where a file is asked for and there is no folder, E158 for a tracker that is not
    installed.
    """
    callbacks: list[Callback] = []
    if settings.patience:
        callbacks.append(EarlyStopping(settings.patience))
    if settings.keep_best:
        if folder is None:
            raise UsageError(
                "E116", "keep_best writes a file; give run(..., name='my-run') to have a folder for it."
            )
        callbacks.append(KeepBest())
    if folder is not None and (folder / PRUNING_FILE).exists():
        callbacks.append(Pruning(read_rule(folder)))
    for name in settings.trackers:
        callbacks.append(importlib.import_module(f"{TRACKERS_PACKAGE}.{name}").Tracker())
    return callbacks
