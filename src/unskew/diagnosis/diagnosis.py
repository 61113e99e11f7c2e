"""The result of a diagnosis: the measures, their meaning in plain words, and the recommended method."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unskew.diagnosis.advice import (
    LOCAL,
    NEAREST,
    Expectation,
    Gain,
    Goal,
    Neighbour,
    Verdict,
    over_local,
    pays,
)
from unskew.diagnosis.pooling import Pooling
from unskew.diagnosis.skews import Skews
from unskew.errors import excerpt


@dataclass(frozen=True)
class Reading:
    """A measure. value: as text. meaning: in plain words."""

    name: str
    value: str
    meaning: str


@dataclass(frozen=True)
class WorstColumn:
    """The column of a table in which sites lie furthest apart. site: the one furthest from the others. skew:
    the feature skew of this column alone."""

    name: str
    site: str
    skew: float

    def __str__(self) -> str:
        return f"{excerpt(self.name, 40)}, {self.skew:.2f}, {self.site} from the others"


FEATURE_GRADES = (0.2, 0.7)
"""Feature skews from which inputs look different, and very different."""


def readings(s: Skews, worst: WorstColumn | None = None) -> list[Reading]:
    """Every measure with its meaning, in the order in which tables show them."""
    return [
        Reading("sites", f"{s.sites:,}", _sites(s)),
        Reading(
            "samples a site",
            f"{s.samples:,.0f}",
            f"the median; {s.of_class:,.1f} a class on average, {_scarcity(s.of_class)}",
        ),
        Reading(
            "imbalance",
            f"{s.imbalance:.2f}",
            _grade(
                s.imbalance,
                "sites hold about equally much",
                "sites differ in size",
                "a few sites hold most samples",
                (0.2, 0.6),
            ),
        ),
        Reading("label skew", f"{s.label_skew:.2f}", _label_skew(s.label_skew)),
        Reading("missing classes", f"{s.missing:.0%}", _missing(s.missing)),
        Reading(
            "feature skew",
            "?" if s.feature_skew is None else f"{s.feature_skew:.2f}",
            _feature_skew(s.feature_skew, worst),
        ),
        Reading(
            "absent a round",
            f"{s.absent:.0%}",
            _grade(
                s.absent,
                "nearly every site answers in every round",
                "some sites miss a round",
                "most sites are absent from a round",
                (0.1, 0.5),
            ),
        ),
    ]


def _grade(value: float, low: str, middle: str, high: str, at: tuple[float, float]) -> str:
    if value < at[0]:
        return low
    return middle if value < at[1] else high


def _sites(s: Skews) -> str:
    if not s.empty:
        return "all of them have samples"
    verb = "has" if s.empty == 1 else "have"
    return f"with samples; {s.empty:,} more {verb} none, and only receive the model"


def _scarcity(of_class: float) -> str:
    return _grade(of_class, "too few to learn from alone", "few", "enough to train alone", (5, 50))


def _label_skew(value: float) -> str:
    grade = _grade(
        value,
        "sites hold the classes alike",
        "sites hold classes in different shares",
        "sites hold different classes",
        (0.1, 0.4),
    )
    return (
        f"{grade}: {value:.0%} of a site's labels would have to change for its shares to be those of all,"
        " beyond chance"
    )


def _missing(value: float) -> str:
    return _grade(
        value,
        "every site holds nearly every class",
        "sites lack some classes",
        "sites lack most classes",
        (0.05, 0.5),
    )


def _feature_skew(value: float | None, worst: WorstColumn | None) -> str:
    if value is None:
        return "cannot be told: no class has enough samples at two sites, or the samples are constant"
    grades = (
        "inputs of a class look alike at every site",
        "inputs look different from site to site",
        "inputs look very different from site to site",
    )
    text = f"{_grade(value, *grades, FEATURE_GRADES)}: sites lie {value:.2f} standard deviations of a sample"
    text += " apart"
    if worst is None or not worst.skew:
        return text
    if value < FEATURE_GRADES[0] <= worst.skew:
        text = text.replace("look alike", "look alike in most columns")
    return f"{text}; furthest in {worst}"


def points(share: float) -> str:
    """A difference of scores in points, with its sign."""
    return f"{100 * share:+.1f}"


AIMS: dict[Goal, str] = {"sites": "at the sites", "one": "one model for all"}
"""The names of the two goals in tables."""


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """The measures of a federation, and the methods for it, those with the largest expected gains first.

    federation, split: the data and their division. leaves: a sentence on the numbers that each site shares.
    rankings: by goal, `sites` (each site's model on its own test samples) and `one` (a single model, also for
    new sites). nearest: the settings of the evidence, the most similar first. refused: by method, why it
    cannot run here. cautions: why the evidence may not carry over.
    """

    federation: str
    split: str
    skews: Skews
    leaves: str
    rankings: Mapping[Goal, tuple[Expectation, ...]]
    nearest: tuple[Neighbour, ...]
    refused: Mapping[str, str]
    cautions: tuple[str, ...] = ()
    worst: WorstColumn | None = None
    pooling: Pooling | None = None

    def best(self, goal: Goal = "sites") -> Expectation:
        """The method with the largest expected gain."""
        return self.rankings[goal][0]

    @property
    def pays(self) -> Verdict:
        """Whether the best method is expected to beat local training by more than the spread of the evidence;
        for a table, of the evidence and of what a simple classifier shows on its rows.

        Always "open" if there are cautions.
        """
        return "open" if self.cautions else pays(self.best(), self.pooling)

    @property
    def method(self) -> str:
        """The recommended method at the sites: the best one, or `local` if federating does not pay."""
        return LOCAL if self.pays == "no" else self.best().method

    def __repr__(self) -> str:
        gain = self.best().over_fedavg
        return (
            f"<Diagnosis of {self.federation}: take {self.method}, {_points(gain)} points over fedavg"
            f" expected; federating pays: {self.pays}>"
        )

    def _repr_html_(self) -> str:
        """The table, as a notebook shows it."""
        return f"<pre>{html.escape(self.table())}</pre>"

    def table(self) -> str:
        """The diagnosis as text: measures, what leaves the sites, recommendations and their evidence."""
        lines = [f"{self.federation}, divided by {self.split}", ""]
        lines += [f"{r.name:<16}{r.value:>8}  {r.meaning}" for r in readings(self.skews, self.worst)]
        if p := self.pooling:
            meaning = "points that a simple classifier gains at the sites from the rows of all"
            lines.append(f"{'pooled rows':<16}{points(p.gain):>8}  ± {100 * p.error:.1f} {meaning}")
        lines += ["", self.leaves, "", f"{'goal':<19}{'method':<24}{'over fedavg':>15}{'over local':>15}"]
        for goal, aim in AIMS.items():
            lines += [_row(aim if i == 0 else "", e) for i, e in enumerate(self.rankings[goal][:3])]
        lines += ["", _verdict(self), _evidence(self.nearest)]
        lines += [f"caution   {text}" for text in self.cautions]
        lines += [f"not here  {name}: {reason}" for name, reason in self.refused.items()]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """The diagnosis in plain values, as `--json` prints it; a gain of 0.05 is 5 points."""
        return {
            "federation": self.federation,
            "split": self.split,
            "measures": {
                r.name: {"value": v, "meaning": r.meaning}
                for r, v in zip(readings(self.skews, self.worst), _values(self.skews))
            },
            "pooling": dataclasses.asdict(self.pooling) if self.pooling else None,
            "worst_column": dataclasses.asdict(self.worst) if self.worst else None,
            "leaves": self.leaves,
            "method": self.method,
            "pays": self.pays,
            "rankings": {
                goal: [dataclasses.asdict(e) for e in ranking] for goal, ranking in self.rankings.items()
            },
            "nearest": [
                {"setting": n.setting.name, "about": n.setting.about, "distance": n.distance}
                for n in self.nearest
            ],
            "refused": dict(self.refused),
            "cautions": list(self.cautions),
        }


def _values(s: Skews) -> list[float | None]:
    return [s.sites, s.samples, s.imbalance, s.label_skew, s.missing, s.feature_skew, s.absent]


def _points(gain: Gain | None) -> str:
    return "–" if gain is None else f"{points(gain.mean)} ± {100 * gain.spread:.1f}"


def _row(aim: str, expected: Expectation) -> str:
    return (
        f"{aim:<19}{expected.method:<24}{_points(expected.over_fedavg):>15}{_points(expected.over_local):>15}"
    )


def _verdict(diagnosis: Diagnosis) -> str:
    best = diagnosis.best()
    lead = _points(over_local(best, diagnosis.pooling))
    expected = f"{best.method} is expected {lead} points from training alone, at the sites"
    if diagnosis.pays == "no":
        return (
            f"Federating does not pay: {expected}. Let every site train alone, unless sites without data need"
            " a model."
        )
    if diagnosis.pays == "open":
        but = (
            "the evidence may not carry over to these data, as the cautions say, though "
            if pays(best, diagnosis.pooling) != "open"
            else ""
        )
        return (
            f"Whether federating pays cannot be told: {but}{expected}. Compare both on your own data before"
            " you decide."
        )
    return f"Federating pays: {expected}."


def _evidence(nearest: tuple[Neighbour, ...]) -> str:
    named = "; ".join(
        f"{near.setting.name} ({near.setting.about}; distance {near.distance:.1f})"
        for near in nearest[:NEAREST]
    )
    return f"Evidence: gains in points, ± their spread over runs, in the most similar settings: {named}."
