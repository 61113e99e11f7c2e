"""The primitives that pictures are drawn with, worked by hand."""

from __future__ import annotations

import pytest

from unskew.report.figures import svg
from unskew.report.figures.svg import Scale


def test_labels_that_are_too_close_form_a_block_around_the_mean_of_their_places():
    assert svg.separate_labels([], 5, 0, 100) == []
    assert svg.separate_labels([50, 10], 5, 0, 100) == [50, 10]
    assert svg.separate_labels([10, 11, 12], 5, 0, 100) == [6, 11, 16]
    # 10 and 10 ask for 7.5; 11 joins them: (10 + 5 + 1) / 3 from the first
    assert svg.separate_labels([11, 10, 10], 5, 0, 100) == pytest.approx([46 / 3, 16 / 3, 31 / 3])
    assert svg.separate_labels([99, 98, 97], 5, 0, 100) == [100, 95, 90]
    assert svg.separate_labels([50] * 5, 40, 0, 100) == [0, 25, 50, 75, 100]  # no room for the gap


def test_references_are_grey_and_take_no_methods_colour():
    methods = ["central", *(f"m{i}" for i in range(9)), "local"]
    colours = svg.colours(methods, ["central", "local"])
    assert (colours["central"], colours["local"]) == ("ref method-9", "ref d1 method-10")
    hues = [*(f"m{i}" for i in range(8)), "m0 d1"]
    assert [colours[f"m{i}"] for i in range(9)] == [f"{hue} method-{i}" for i, hue in enumerate(hues)]


def test_forty_methods_of_a_comparison_differ_by_colour_or_dash_pattern():
    methods = [f"method{i}" for i in range(svg.HUES * svg.DASHES)]
    looks = {kind.partition(" method-")[0] for kind in svg.colours(methods, []).values()}
    assert len(looks) == len(methods) == 40


def test_texts_from_outside_are_escaped():
    evil = "</text><script>alert('x')</script>"
    for drawn in (
        svg.text(0, 0, evil), svg.tooltip(evil), svg.label_with_value(0, 0, evil, evil, "name"),
        svg.x_axis(Scale(0, 1, 0, 9), 5, 0, evil, lambda v: evil),
    ):  # fmt: skip
        assert "<script" not in drawn
        assert "&lt;script&gt;" in drawn
