"""An equal tuning budget for every method of a table: N trials each, scored on held-out training samples.

Every method tunes the factor on its learning rate and its own Parts' arguments. The first trial is always what the table
says. Trials run on the first row that is run, with a seed of their own, so that nothing of the table's runs is seen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from unskew.comparison.cells import Cell
from unskew.config import Settings
from unskew.errors import UsageError
from unskew.experiments import verdict
from unskew.experiments.plan import Experiment, Row
from unskew.methods import registry
from unskew.report import read

SEED, VALIDATION, FACTOR = 10_000, 0.2, "lr factor"
FACTORS = (1.0, 0.3, 3.0)
GRIDS: dict[str, dict[str, list[Any]]] = {
    "fedprox": {"mu": [0.1, 0.01, 0.001]},
    "fedavgm": {"beta": [0.5, 0.7, 0.9]},
    "feddyn": {"alpha": [0.0001, 0.001, 0.01, 0.1]},
    "moon": {"mu": [0.1, 1.0, 5.0, 10.0]},
    "fedproto": {"lam": [0.1, 1.0, 10.0]},
    "feddecorr": {"beta": [0.01, 0.1, 0.3]},
    "fedlc": {"tau": [0.1, 0.5, 1.0]},
    "fedrs": {"alpha": [0.1, 0.5, 0.9]},
    "fedntd": {"beta": [0.3, 1.0, 3.0]},
    "fedbr": {"lam": [0.2, 0.8, 2.0]},
    "fedmix": {"lam": [0.05, 0.1, 0.2]},
    "flea": {"lambda1": [0.3, 1.0, 3.0], "lambda2": [0.0, 1.0, 3.0]},
    "rebafl": {"eps": [0.005, 0.01, 0.1], "mu": [0.1, 0.5, 1.0]},
    "feddpms": {"lam": [0.005, 0.05, 0.5]},
}
"""Values by Part; a table's own `grids` come first."""
Point = dict[str, Any]
"""One setting of everything that is tuned: the factor, and `part.argument`."""
Runner = Callable[[Sequence[Cell]], None]


class Search(Protocol):
    """Proposes points and hears how good they were."""

    def ask(self) -> Point | None: ...

    def tell(self, point: Point, score: float) -> None: ...


class Shuffled:
    """The whole grid in a random order that is always the same, the table's own setting first."""

    def __init__(self, space: Mapping[str, Sequence[Any]], first: Point):
        points = [dict(zip(space, values)) for values in itertools.product(*space.values())]
        order = np.random.default_rng(0).permutation(len(points))
        self._left = [first, *(points[i] for i in order if points[i] != first)]

    def ask(self) -> Point | None:
        return self._left.pop(0) if self._left else None

    def tell(self, point: Point, score: float) -> None:
        pass


class Parzen:
    """Optuna's tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011) on the same grid."""

    def __init__(self, space: Mapping[str, Sequence[Any]], first: Point):
        try:
            import optuna
        except ImportError as error:
            raise UsageError("E109", "the sampler tpe needs Optuna: pip install 'unskew[sweep]'.") from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.space, self.open = space, {}
        self.study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
        self.study.enqueue_trial(first)

    def ask(self) -> Point | None:
        trial = self.study.ask()
        point = {name: trial.suggest_categorical(name, list(values)) for name, values in self.space.items()}
        self.open[tuple(point.items())] = trial
        return point

    def tell(self, point: Point, score: float) -> None:
        self.study.tell(self.open.pop(tuple(point.items())), score)


SAMPLERS: dict[str, Callable[[Mapping[str, Sequence[Any]], Point], Search]] = {"random": Shuffled, "tpe": Parzen}


@dataclass
class Tuned:
    """What the trials of one method came to: [(point, score in the table's unit)], the best of them in `point`."""

    tried: list[tuple[Point, float]] = field(default_factory=list)

    @property
    def point(self) -> Point:
        """The first of the best; a trial that diverged is never it."""
        return max(self.tried, key=lambda t: -math.inf if math.isnan(t[1]) else t[1])[0]


def space_of(made: Experiment, method: str) -> tuple[dict[str, list[Any]], Point]:
    """(what a method tunes: name -> values; the table's own setting)."""
    space: dict[str, list[Any]] = {FACTOR: list(FACTORS)}
    first: Point = {FACTOR: 1.0}
    for part in _parts(made, method):
        for argument, values in (made.grids.get(part.name) or GRIDS.get(part.name, {})).items():
            own = getattr(part, argument)
            space[f"{part.name}.{argument}"] = [own, *(v for v in values if v != own)]
            first[f"{part.name}.{argument}"] = own
    return space, first


def tune(
    made: Experiment, row: Row, methods: Sequence[str], trials: int, scale: float, sampler: str, at: Path, run: Runner
) -> tuple[Experiment, dict[str, Tuned]]:
    """The experiment with every method as its best trial has it, and all trials.

    run: trains cells that are not finished. Raises UsageError (E109) for a table whose numbers are not to be maximised.
    """
    if made.unit != "percent":
        raise UsageError("E109", f"'{made.name}' tells of a measure, of which more is not better; it cannot be tuned.")
    if sampler not in SAMPLERS:
        raise UsageError("E109", f"sampler should be {' or '.join(SAMPLERS)}, got '{sampler}'.")
    searches = {m: SAMPLERS[sampler](*space_of(made, m)) for m in methods}
    found = {m: Tuned() for m in methods}
    for _ in range(trials):
        asked = {m: point for m in methods if (point := searches[m].ask()) is not None}
        cells = {m: _cell(changed(made, {m: point}), row, m, scale, at) for m, point in asked.items()}
        run(list(cells.values()))
        for m, cell in cells.items():
            score = verdict.scores_of(read.read_run(cell.path, m), made, row)["mean10"]
            searches[m].tell(asked[m], score)
            found[m].tried.append((asked[m], score))
    return changed(made, {m: t.point for m, t in found.items()}), found


def changed(made: Experiment, points: Mapping[str, Point]) -> Experiment:
    """The experiment with some methods set otherwise."""
    methods = dict(made.methods)
    for m, point in points.items():
        wanted: dict[str, dict[str, Any]] = {}
        for name, value in point.items():
            if name != FACTOR:
                part, _, argument = name.partition(".")
                wanted.setdefault(part, {})[argument] = value
        if wanted:
            methods[m] = str(registry.parse(methods[m], wanted))
    return replace(made, methods=methods, factors={**made.factors, **{m: p[FACTOR] for m, p in points.items()}})


def as_json(made: Experiment, found: Mapping[str, Tuned]) -> dict[str, Any]:
    """What is kept: by method what was chosen, and every trial with its score."""
    return {
        m: {
            "method": made.methods[m] + (f", lr x {made.factors[m]:g}" if made.factors[m] != 1 else ""),
            "trials": [{**point, "score": score} for point, score in t.tried],
        }
        for m, t in found.items()
    }


def _parts(made: Experiment, method: str) -> Sequence[Any]:
    text = made.methods[method]
    return () if text in ("local", "centralised") else registry.parse(text).parts


def _cell(made: Experiment, row: Row, method: str, scale: float, at: Path) -> Cell:
    settings: Settings = made.settings_of(row, method, scale).replace(seed=SEED, validation=VALIDATION)
    path = at / "cells" / settings.fingerprint()[:20]
    return Cell(f"tuning {method}", SEED, path, settings)
