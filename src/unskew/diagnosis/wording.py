"""What the measures of a federation mean, in plain words."""

from __future__ import annotations

from dataclasses import dataclass

from unskew.diagnosis.skews import Skews


@dataclass(frozen=True)
class Reading:
    """A measure: its name, its value as text, and what it means."""

    name: str
    value: str
    meaning: str


def readings(s: Skews) -> list[Reading]:
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
            _graded(
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
            "feature skew", "?" if s.feature_skew is None else f"{s.feature_skew:.2f}", _feature_skew(s.feature_skew)
        ),
        Reading(
            "absent a round",
            f"{s.absent:.0%}",
            _graded(
                s.absent,
                "nearly every site answers in every round",
                "some sites miss a round",
                "most sites are absent from a round",
                (0.1, 0.5),
            ),
        ),
    ]


def _graded(value: float, low: str, middle: str, high: str, at: tuple[float, float]) -> str:
    return low if value < at[0] else middle if value < at[1] else high


def _sites(s: Skews) -> str:
    text = "all of them have samples"
    if s.empty:
        text = f"with samples; {s.empty:,} more {'has' if s.empty == 1 else 'have'} none, and only receive the model"
    return text


def _scarcity(of_class: float) -> str:
    return _graded(of_class, "too few to learn from alone", "few", "enough to train alone", (5, 50))


def _label_skew(value: float) -> str:
    grade = _graded(
        value,
        "sites hold the classes alike",
        "sites hold classes in different shares",
        "sites hold different classes",
        (0.1, 0.4),
    )
    return (
        f"{grade}: {value:.0%} of a site's labels would have to change for its shares to be those of all, beyond chance"
    )


def _missing(value: float) -> str:
    return _graded(
        value, "every site holds nearly every class", "sites lack some classes", "sites lack most classes", (0.05, 0.5)
    )


def _feature_skew(value: float | None) -> str:
    if value is None:
        return "cannot be told: no class has enough samples at two sites, or the samples are constant"
    grade = _graded(
        value,
        "inputs of a class look alike at every site",
        "inputs look different from site to site",
        "inputs look very different from site to site",
        (0.2, 0.7),
    )
    return f"{grade}: sites lie {value:.2f} standard deviations of a sample apart"


def points(share: float) -> str:
    """A difference of scores in points, with its sign."""
    return f"{100 * share:+.1f}"
