"""The runs on which recommendations rest: settings, what was measured of their federations, and every method's scores.

`settings.yaml` says how each setting is run; `tools/evidence.py` runs them and writes `runs.csv` and `skews.csv`.
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

import numpy as np

from unskew import documents
from unskew.diagnosis.skews import Skews

PACKAGE = "unskew.diagnosis"
Goal = Literal["one", "sites"]
"""one: one model for everybody, scored on all test rows. sites: what each site uses, scored on the site's own test rows."""
FEDAVG, LOCAL = "fedavg", "local"


@dataclass(frozen=True)
class Scores:
    """Of one method in one setting: by seed, its score in [0, 1] for each goal; no `one` where there is no such model."""

    one: Mapping[int, float]
    sites: Mapping[int, float]

    def of(self, goal: Goal) -> Mapping[int, float]:
        return self.one if goal == "one" else self.sites


@dataclass(frozen=True)
class Setting:
    """A federation on which methods were run. about: in words. skews: its measures, means over seeds."""

    name: str
    about: str
    skews: Skews
    scores: Mapping[str, Scores]

    def gains(self, method: str, over: str, goal: Goal) -> np.ndarray:
        """By how much a method was ahead of another one, seed by seed, as shares; empty where one of them has no score.

        A method is compared with training alone at the sites, whatever the goal.
        """
        ours, theirs = (self.scores[m].of(goal) if m in self.scores else {} for m in (method, over))
        return np.array([ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())])


def plans(file: str = "settings.yaml") -> dict[str, dict[str, Any]]:
    """By name, each setting of a file: `about`, `data`, what is made smaller, and the settings of its runs."""
    text = (resources.files(PACKAGE) / file).read_text(encoding="utf-8")
    return documents.load(text, file, "E126")


@cache
def settings() -> tuple[Setting, ...]:
    """Every setting of which there are measures and runs, in the order of settings.yaml."""
    scores, skews = scores_in("runs.csv"), _rows("skews.csv")
    return tuple(
        Setting(name, plan["about"], _mean_skews(measured), scores[name])
        for name, plan in plans().items()
        if name in scores and (measured := [row for row in skews if row["setting"] == name])
    )


def scores_in(file: str) -> dict[str, dict[str, Scores]]:
    """By setting and method, the scores that a file of runs holds."""
    rows = _rows(file)
    names = dict.fromkeys(row["setting"] for row in rows)
    return {name: _scores([row for row in rows if row["setting"] == name]) for name in names}


def _rows(file: str) -> list[dict[str, str]]:
    return list(csv.DictReader((resources.files(PACKAGE) / file).read_text(encoding="utf-8").splitlines()))


def _scores(rows: Sequence[dict[str, str]]) -> dict[str, Scores]:
    methods = dict.fromkeys(row["method"] for row in rows)
    return {
        method: Scores(
            *(
                {int(row["seed"]): float(row[goal]) for row in rows if row["method"] == method and row[goal]}
                for goal in ("one", "sites")
            )
        )
        for method in methods
    }


def _mean_skews(rows: Sequence[dict[str, str]]) -> Skews:
    def mean(name: str) -> float | None:
        values = [float(row[name]) for row in rows if row[name]]
        return float(np.mean(values)) if values else None

    return Skews(**{field.name: mean(field.name) for field in dataclasses.fields(Skews)})  # type: ignore[arg-type]
