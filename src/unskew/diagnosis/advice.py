"""The evidence of recommendations, and the method that gained most in settings similar to a federation.

`settings.yaml` describes each setting of images and signals, `tables.yaml` each of rows of a table, and
advice rests on settings of its own kind. `tools/evidence.py` runs them and writes `runs.csv` (the scores of
every method), `skews.csv` (the measures of the federations) and `pooling.csv` (the gains of pooled rows).
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

import numpy as np

from unskew.diagnosis.pooling import Pooling
from unskew.diagnosis.skews import Skews
from unskew.formats import documents

PACKAGE = "unskew.diagnosis"
Goal = Literal["one", "sites"]
"""one: a single model, scored on all test rows. sites: each site's model, scored on the site's test rows."""
FEDAVG, LOCAL = "fedavg", "local"


@dataclass(frozen=True)
class Scores:
    """The scores in [0, 1] of a method in a setting, by seed; `one` is empty without a single model."""

    one: Mapping[int, float]
    sites: Mapping[int, float]

    def of(self, goal: Goal) -> Mapping[int, float]:
        """The scores that count for this goal, by seed."""
        return self.one if goal == "one" else self.sites


@dataclass(frozen=True)
class Setting:
    """A federation on which methods were run.

    about: its description. skews: its measures, means over seeds. scores: by method. poolings: of a table,
    the gains of pooled rows, one per draw.
    """

    name: str
    about: str
    skews: Skews
    scores: Mapping[str, Scores]
    poolings: tuple[Pooling, ...] = ()

    def gains(self, method: str, over: str, goal: Goal) -> np.ndarray:
        """The leads of a method over another one as shares, one per common seed; empty without scores."""
        ours, theirs = (self.scores[m].of(goal) if m in self.scores else {} for m in (method, over))
        return np.array([ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())])


def plans(file: str = "settings.yaml") -> dict[str, dict[str, Any]]:
    """The settings of a file by name: `about`, `data`, reductions of the data, and settings of the runs."""
    text = (resources.files(PACKAGE) / file).read_text(encoding="utf-8")
    return documents.load(text, file, "E126")


Kind = Literal["settings", "tables"]
"""settings: images and signals. tables: rows of a table."""


@cache
def settings(kind: Kind = "settings") -> tuple[Setting, ...]:
    """Every setting of a kind with measures and runs, in the order of its file."""
    scores, skews, poolings = scores_in("runs.csv"), _rows("skews.csv"), _rows("pooling.csv")
    return tuple(
        Setting(
            name,
            plan["about"],
            _mean_skews(measured),
            scores[name],
            tuple(Pooling(float(r["gain"]), float(r["error"])) for r in poolings if r["setting"] == name),
        )
        for name, plan in plans(f"{kind}.yaml").items()
        if name in scores and (measured := [row for row in skews if row["setting"] == name])
    )


def scores_in(file: str) -> dict[str, dict[str, Scores]]:
    """The scores in a file of runs, by setting and method."""
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


NEAREST = 3
SOFT = 0.5
"""Two settings at squared distances far below this have nearly equal weights."""
DEFAULT = "unskew"
"""The method that is recommended unless the evidence clearly favours another one."""
SCALES: dict[str, Callable[[Skews], float]] = {
    "label_skew": lambda s: s.label_skew,
    "missing": lambda s: s.missing,
    "of_class": lambda s: math.log2(max(0.25, s.of_class)),
    "feature_skew": lambda s: min(2.0, s.feature_skew or 0.0),
    "absent": lambda s: s.absent,
    "sites": lambda s: math.log2(s.sites),
}
"""By measure, the number that enters the distance between federations."""


@dataclass(frozen=True)
class Neighbour:
    """A setting of the evidence and its distance from the diagnosed federation."""

    setting: Setting
    distance: float


@dataclass(frozen=True)
class Gain:
    """An expected gain as a share: 0.05 is 5 points. spread: its standard deviation. runs: pairs of runs."""

    mean: float
    spread: float
    runs: int


@dataclass(frozen=True)
class Expectation:
    """The expected gains of a method. over_local: at the sites, for either goal; None without evidence."""

    method: str
    over_fedavg: Gain
    over_local: Gain | None


def nearest(skews: Skews, settings: Sequence[Setting]) -> list[Neighbour]:
    """All settings, the most similar first."""
    table = np.array([[scale(s.skews) for scale in SCALES.values()] for s in settings])
    unit = table.std(0)
    here = np.array([scale(skews) for scale in SCALES.values()])
    distances = np.sqrt((((table - here) / np.where(unit > 0, unit, 1.0)) ** 2).sum(1))
    return sorted(
        (Neighbour(s, float(d)) for s, d in zip(settings, distances)), key=lambda near: near.distance
    )


def gain(method: str, over: str, goal: Goal, ordered: Sequence[Neighbour]) -> Gain | None:
    """The gain of a method over another one in the nearest settings with both; None without any.

    The distance d_s to a setting s is Euclidean over the measures on the scales of SCALES, each divided by
    its standard deviation over the evidence. The expected gain of a method over another one is the mean of
    its gains g_s in the NEAREST settings with scores of both, weighted by 1 / (d_s^2 + SOFT); the spread is
    the weighted standard deviation over these settings and seeds.
    """
    pairs = [(near, near.setting.gains(method, over, goal)) for near in ordered]
    pairs = [(near, gains) for near, gains in pairs if len(gains)][:NEAREST]
    if not pairs:
        return None
    values = np.concatenate([gains for _, gains in pairs])
    weights = np.concatenate([np.full(len(g), 1 / (near.distance**2 + SOFT) / len(g)) for near, g in pairs])
    mean = float(np.average(values, weights=weights))
    spread = float(np.sqrt(np.average((values - mean) ** 2, weights=weights)))
    return Gain(mean, spread, len(values))


def ranking(goal: Goal, methods: Sequence[str], ordered: Sequence[Neighbour]) -> list[Expectation]:
    """The methods with evidence, by descending expected gain over FedAvg.

    The default method comes first unless another method leads it by more than the spread of the default's
    gain.
    """
    known = [
        Expectation(method, over_fedavg, gain(method, LOCAL, "sites", ordered))
        for method in methods
        if (over_fedavg := gain(method, FEDAVG, goal, ordered))
    ]
    ranked = sorted(known, key=lambda expected: -expected.over_fedavg.mean)
    default = next((e for e in ranked if e.method == DEFAULT), None)
    if default and ranked[0].over_fedavg.mean - default.over_fedavg.mean <= default.over_fedavg.spread:
        return [default, *(e for e in ranked if e is not default)]
    return ranked


Verdict = Literal["yes", "no", "open"]
SURE = 1.25
BIAS, LEAST = 0.03, 0.02
"""The deviation of a network's gain from that of a simple classifier, and the least spread of an expected
gain."""


def over_local(best: Expectation, pooling: Pooling | None = None) -> Gain | None:
    """The expected lead of a method over local training; None without evidence. pooling: of a table.

    For a table the lead is the mean of the expectation of `gain`, m ± s, and of the gain of pooled rows,
    p ± e, each weighted by its precision. With u = e^2 + BIAS^2 and v = max(s, LEAST)^2 it is
    (p / u + m / v) / (1 / u + 1 / v) ± 1 / sqrt(1 / u + 1 / v), and it decides from SURE of these deviations
    on.
    """
    expected = best.over_local
    if expected is None or pooling is None:
        return expected
    own, others = 1 / (pooling.error**2 + BIAS**2), 1 / max(expected.spread, LEAST) ** 2
    mean = (pooling.gain * own + expected.mean * others) / (own + others)
    return Gain(mean, (own + others) ** -0.5, expected.runs)


def pays(best: Expectation, pooling: Pooling | None = None) -> Verdict:
    """Whether a method is expected to beat local training by more than the spread of its lead, or of a table
    by more than SURE times that."""
    lead = over_local(best, pooling)
    if lead is None or abs(lead.mean) <= lead.spread * (SURE if pooling else 1):
        return "open"
    return "yes" if lead.mean > 0 else "no"
