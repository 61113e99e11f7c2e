"""Which method to take for a federation: what methods gained in the settings of the evidence that are most like it.

Every measure counts in units of its standard deviation over the evidence, on the scale of SCALES; d is the Euclidean distance. A
gain is expected from the NEAREST settings in which both methods have scores, as the mean of g_s weighted by 1 / (d_s^2 + SOFT),
and its spread is the weighted standard deviation over their settings and seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from unskew.diagnosis.evidence import FEDAVG, LOCAL, Goal, Setting
from unskew.diagnosis.skews import Skews

NEAREST = 3
SOFT = 0.5
"""Two settings at a distance far below this count the same."""
DEFAULT = "unskew"
"""The method that is advised where the evidence does not clearly speak for another one."""
SCALES: dict[str, Callable[[Skews], float]] = {
    "label_skew": lambda s: s.label_skew,
    "missing": lambda s: s.missing,
    "of_class": lambda s: math.log2(max(0.25, s.of_class)),
    "feature_skew": lambda s: min(2.0, s.feature_skew or 0.0),
    "absent": lambda s: s.absent,
    "sites": lambda s: math.log2(s.sites),
}
"""By measure, the number by which federations are compared."""


@dataclass(frozen=True)
class Near:
    """A setting of the evidence and its distance from the federation that is diagnosed."""

    setting: Setting
    distance: float


@dataclass(frozen=True)
class Gain:
    """An expected gain, as a share: 0.05 is 5 points. spread: its standard deviation. runs: how many pairs of runs say so."""

    mean: float
    spread: float
    runs: int


@dataclass(frozen=True)
class Expected:
    """What a method is expected to do. over_local: at the sites, whatever the goal; None without evidence."""

    method: str
    over_fedavg: Gain
    over_local: Gain | None


def nearest(skews: Skews, settings: Sequence[Setting]) -> list[Near]:
    """All settings, the most similar first."""
    table = np.array([[scale(s.skews) for scale in SCALES.values()] for s in settings])
    unit = table.std(0)
    here = np.array([scale(skews) for scale in SCALES.values()])
    distances = np.sqrt((((table - here) / np.where(unit > 0, unit, 1.0)) ** 2).sum(1))
    return sorted((Near(s, float(d)) for s, d in zip(settings, distances)), key=lambda near: near.distance)


def gain(method: str, over: str, goal: Goal, ordered: Sequence[Near]) -> Gain | None:
    """What a method gains over another one in the nearest settings that have both; None if no setting has."""
    pairs = [(near, near.setting.gains(method, over, goal)) for near in ordered]
    pairs = [(near, gains) for near, gains in pairs if len(gains)][:NEAREST]
    if not pairs:
        return None
    values = np.concatenate([gains for _, gains in pairs])
    weights = np.concatenate([np.full(len(g), 1 / (near.distance**2 + SOFT) / len(g)) for near, g in pairs])
    mean = float(np.average(values, weights=weights))
    spread = float(np.sqrt(np.average((values - mean) ** 2, weights=weights)))
    return Gain(mean, spread, len(values))


def ranking(goal: Goal, methods: Sequence[str], ordered: Sequence[Near]) -> list[Expected]:
    """The methods with evidence, the one with the largest expected gain over FedAvg first.

    The default stands first unless another method is expected to be ahead of it by more than the spread of its own gain.
    """
    known = [
        Expected(method, over_fedavg, gain(method, LOCAL, "sites", ordered))
        for method in methods
        if (over_fedavg := gain(method, FEDAVG, goal, ordered))
    ]
    ranked = sorted(known, key=lambda expected: -expected.over_fedavg.mean)
    default = next((e for e in ranked if e.method == DEFAULT), None)
    if default and ranked[0].over_fedavg.mean - default.over_fedavg.mean <= default.over_fedavg.spread:
        return [default, *(e for e in ranked if e is not default)]
    return ranked


def pays(best: Expected) -> Literal["yes", "no", "open"]:
    """Whether a method is expected to beat training alone at the sites by more than the spread of the evidence."""
    gain = best.over_local
    if gain is None or abs(gain.mean) <= gain.spread:
        return "open"
    return "yes" if gain.mean > 0 else "no"


def advised(goal: Goal, ranked: Sequence[Expected]) -> str:
    """The method to take: the first of a ranking, or training alone where federating does not pay the sites."""
    return LOCAL if goal == "sites" and pays(ranked[0]) == "no" else ranked[0].method
