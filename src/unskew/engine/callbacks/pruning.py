"""Ends a trial of a search for settings that falls behind the trials before it, by Optuna's median rule.

From round `warmup` on, and once `startup` trials have come to their end, a trial is ended whose best score so far is worse
than the median of what those had scored in the same round (Golovin et al., KDD 2017). The trials before it are in a file
in the run's folder, written before the run begins, so the decision depends on no clock and is the same after a kill.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from unskew import disk
from unskew.engine.callbacks.callback import Callback, Progress
from unskew.engine.callbacks.early_stopping import judged, kind_of
from unskew.errors import StateError

FILE = "pruning.json"
"""In the folder of a trial."""


@dataclass(frozen=True)
class Rule:
    """What a trial is held against. own: score clients' own models rather than the global one. finished: (round, score) of
    every earlier trial that came to its end."""

    own: bool
    startup: int
    warmup: int
    finished: Sequence[Sequence[tuple[int, float]]] = field(default_factory=tuple)

    def write(self, folder: Path) -> None:
        """Into the folder of a trial that is about to begin, or of one that has, where it changes nothing."""
        folder.mkdir(parents=True, exist_ok=True)
        disk.replace(folder / FILE, json.dumps(asdict(self)))


def read(folder: Path) -> Rule:
    """Raises StateError (E111) for a damaged file."""
    try:
        values = json.loads((folder / FILE).read_text())
        finished = [[(int(t), float(v)) for t, v in curve] for curve in values["finished"]]
        return Rule(bool(values["own"]), int(values["startup"]), int(values["warmup"]), finished)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise StateError("E111", f"{folder / FILE} cannot be read: {error}.") from None


class Pruning(Callback):
    """Ends a trial that falls behind."""

    name = "pruning"

    def __init__(self, rule: Rule):
        self.rule = rule

    def evaluated(self, run: Progress, rows: Sequence[Mapping[str, Any]]) -> str | None:
        scope, metric = scored(run, self.rule.own)
        curve = [(t, value) for t, value in zip(*run.series(scope, metric)) if t > 0]
        if not falls_behind(curve, self.rule, kind_of(run, metric).lower):
            return None
        return f"its best {scope} {metric} is worse than the median of {len(self.rule.finished)} earlier trials"


def scored(run: Progress, own: bool) -> tuple[str, str]:
    """(scope, metric) of the score that tells trials apart. own: clients' own models, where they are scored."""
    return ("personal@client", "mean") if own and run.series("personal@client", "mean")[0] else judged(run)


def falls_behind(curve: Sequence[tuple[int, float]], rule: Rule, lower: bool) -> bool:
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
