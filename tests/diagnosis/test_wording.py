"""What measures are called: every grade and where it begins."""

from __future__ import annotations

import dataclasses

import pytest

from unskew.diagnosis.diagnosis import points, readings
from unskew.diagnosis.skews import Skews

EVEN = Skews(10, 0, 1234.0, 60.0, 0.1, 0.05, 0.02, 0.1, 0.05)


def said(**changes: float | None) -> dict[str, tuple[str, str]]:
    """By measure, its value and what it means."""
    return {r.name: (r.value, r.meaning) for r in readings(dataclasses.replace(EVEN, **changes))}  # type: ignore[arg-type]


def test_the_measures_of_an_even_federation():
    assert said() == {
        "sites": ("10", "all of them have samples"),
        "samples a site": ("1,234", "the median; 60.0 a class on average, enough to train alone"),
        "imbalance": ("0.10", "sites hold about equally much"),
        "label skew": (
            "0.05",
            (
                "sites hold the classes alike: 5% of a site's labels would have to change for its shares to"
                " be those of all, beyond chance"
            ),
        ),
        "missing classes": ("2%", "every site holds nearly every class"),
        "feature skew": (
            "0.10",
            (
                "inputs of a class look alike at every site: sites lie 0.10 standard deviations of a sample"
                " apart"
            ),
        ),
        "absent a round": ("5%", "nearly every site answers in every round"),
    }


@pytest.mark.parametrize(
    ("measure", "name", "least", "most", "grades"),
    [
        (
            "of_class",
            "samples a site",
            5,
            50,
            ("too few to learn from alone", "average, few", "enough to train alone"),
        ),
        (
            "imbalance",
            "imbalance",
            0.2,
            0.6,
            ("equally much", "differ in size", "a few sites hold most samples"),
        ),
        (
            "label_skew",
            "label skew",
            0.1,
            0.4,
            ("classes alike", "in different shares", "sites hold different classes"),
        ),
        (
            "missing",
            "missing classes",
            0.05,
            0.5,
            ("nearly every class", "lack some classes", "lack most classes"),
        ),
        ("feature_skew", "feature skew", 0.2, 0.7, ("look alike", "look different", "look very different")),
        (
            "absent",
            "absent a round",
            0.1,
            0.5,
            ("nearly every site answers", "some sites miss", "most sites are absent"),
        ),
    ],
)
def test_where_grades_begin(measure, name, least, most, grades):
    at = (least - 0.001, least, most - 0.001, most)
    for value, grade in zip(at, (grades[0], grades[1], grades[1], grades[2])):
        assert grade in said(**{measure: value})[name][1], value


def test_what_cannot_be_told_and_who_has_nothing():
    assert said(feature_skew=None)["feature skew"][0] == "?"
    assert said(feature_skew=None)["feature skew"][1].startswith("cannot be told")
    assert said(empty=1)["sites"][1] == "with samples; 1 more has none, and only receive the model"
    assert said(empty=2000)["sites"][1] == "with samples; 2,000 more have none, and only receive the model"


def test_differences_have_their_sign():
    assert [points(share) for share in (0.0123, -0.5, 0.0)] == ["+1.2", "-50.0", "+0.0"]
