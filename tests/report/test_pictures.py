"""What pictures say in numbers: their descriptions, and the places of what they draw, by hand."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from unskew.report.figures.bars import histograms
from unskew.report.figures.curves import Axis, Point, curves, roc, scatter, series
from unskew.report.figures.images import received_inputs, tsne
from unskew.report.figures.matrices import confusion, exposure
from unskew.report.figures.method_rows import Strip, client_scores
from unskew.report.figures.svg import SHADES, Line


def described(drawn: str) -> str:
    """A picture's description, for whoever hears it."""
    ET.fromstring(drawn)
    found = re.search(r'aria-label="([^"]*)"', drawn) or re.search(r"<title>([^<]*)</title>", drawn)
    assert found, drawn[:300]
    return found[1]


def line(name: str, x: list[float], y: list[float], share: bool = True) -> Line:
    return Line(name, "m0", np.array(x), np.array(y), np.zeros(len(x)), share=share)


def test_a_confusion_counts_what_is_right_on_its_diagonal_and_true_classes_down():
    drawn = confusion([[6, 2], [1, 3]], ["cat", "dog"], "at site a")
    assert described(drawn) == "Which class is taken for which, at site a: 9 of 12 samples right"
    cells = re.findall(r'<text class="count on(\d)"[^>]*>(\d+)<', drawn)
    assert [percent for _, percent in cells] == ["75", "25", "25", "75"]
    assert cells[0][0] == cells[3][0] > cells[1][0] == cells[2][0]
    three = confusion([[0, 4], [0, 0]], ["cat", "dog"], "x")
    places = re.findall(r'<text class="count[^>]* x="([\d.]+)" y="([\d.]+)"[^>]*>(\d+)<', three)
    ((x, y, value),) = places
    both = confusion([[1, 1], [0, 0]], ["cat", "dog"], "x")
    first, second = re.findall(r'<text class="count[^>]* x="([\d.]+)" y="([\d.]+)"[^>]*>(\d+)<', both)
    assert float(first[0]) < float(second[0])
    assert (value, x, y) == (
        "100",
        second[0],
        first[1],
    )  # cats taken for dogs: in the first row, the second column


def test_curves_end_where_they_end_in_percent_or_in_their_own_unit():
    assert described(
        curves([line("a", [1, 2], [0.5, 0.625]), line("b", [1], [0.25])], "round", "accuracy, %")
    ) == ("accuracy, % against round. a ends at 62.5 %; b ends at 25.0 %")
    number = curves([line("a", [1, 2], [12.5, 8.25], share=False)], "round", "error")
    assert described(number) == "error against round. a ends at 8.25"
    assert curves([], "round", "x") == ""


def test_series_begin_at_zero_unless_all_is_far_from_it():
    near = series([line("a", [1, 2], [0.3, 1.0], share=False)], "loss")
    far = series([line("a", [1, 2], [0.9, 1.0], share=False)], "loss")
    assert described(near) == "loss against round. a ends at 1"
    ticks = {
        name: re.findall(r'<text class="tick"[^>]*>([^<]*)<', drawn)
        for name, drawn in (("near", near), ("far", far))
    }
    assert "0" in ticks["near"]
    assert "0" not in [t for t in ticks["far"] if "." in t or t == "0"]
    assert series([line("a", [1], [0.3])], "loss") == ""


def test_a_receivers_curve_is_read_at_one_percent_of_false_positives():
    drawn = roc([{"name": "loss", "fpr": [0.0, 0.01, 0.011, 1.0], "tpr": [0.0, 0.25, 0.75, 1.0]}])
    assert described(drawn).endswith("loss catches 25.0% at 1 %")
    assert roc([]) == ""


def test_exposure_is_darker_the_earlier_it_was():
    since = [[0, 1, 0], [10, 0, 5], [0, 0, 0]]
    drawn = exposure({"share": 0.5, "since": since, "names": ["a", "b", "c"]}, 10)
    assert described(drawn).startswith("Exposure: 50.0 % of pairs")
    shades = {
        int(q): re.findall(r"M([\d.]+) ([\d.]+)", d)
        for q, d in re.findall(r'<path class="q(\d+)" d="([^"]+)"', drawn)
    }
    cell, (left, top) = 14.0, (64.0, 24.0)
    assert [(round(float(x) - left), round(float(y) - top)) for x, y in shades[SHADES]] == [(cell, 0)]
    assert max(shades) == SHADES
    assert sum(len(cells) for cells in shades.values()) == 3
    (late,) = shades[min(shades)]
    assert (round(float(late[0]) - left), round(float(late[1]) - top)) == (
        0,
        14,
    )  # row: whose; column: who received it
    assert exposure({"share": 0.0, "since": [], "names": []}, 10) == ""


def test_histograms_are_shares_of_their_own_panel():
    drawn = histograms(
        {"buffer": [1, 3], "local": [[0, 0], [2, 2], [1, 0], [0, 1]], "mixed": [], "names": ["x", "y"]},
        ["a", "b"],
        most=3,
    )
    titles = re.findall(r'<text class="label"[^>]*>([^<]*)<', drawn)
    assert titles == [
        "buffer",
        "y: own data",
        "client 2: own data",
    ]  # the first has no samples, the fourth is one too many
    tips = re.findall(r"class (\w): ([\d.]+) %", drawn)
    assert tips == [("a", "25.0"), ("b", "75.0"), ("a", "50.0"), ("b", "50.0"), ("a", "100.0"), ("b", "0.0")]


def test_of_errors_the_worst_client_is_the_one_with_the_largest():
    drawn = client_scores([Strip("flea", "m1", ["anna", "ben"], [2.0, 8.0], "rmse")], "error")
    assert "worst 8" in described(drawn)
    assert ": ben<" in drawn
    shares = client_scores([Strip("flea", "m1", ["anna", "ben"], [0.25, 0.75])], "accuracy, %")
    assert described(shares) == "Every client. flea: mean 50.0 %, worst 25.0 %"


def test_a_scatter_says_where_each_method_stands_and_puts_those_without_a_value_apart():
    points = [
        Point("dp", "m0", 4.0, 3.0, 5.0, 0.75, 0.01),
        Point("plain", "m1", float("inf"), 0.0, 0.0, 0.875),
    ]
    axis = Axis("epsilon", lambda v: f"{v:.3g}", True, "none")
    assert (
        described(scatter(points, axis, "accuracy"))
        == "accuracy against epsilon. dp: 4, 75.0 %; plain: none, 87.5 %"
    )
    assert scatter(points[1:], axis, "accuracy") == ""
    nan = Point("x", "m0", float("nan"), 0.0, 0.0, 0.5)
    assert "x:" not in described(scatter([*points, nan], axis, "accuracy"))


@pytest.mark.parametrize("kinds", [("local",), ("local", "global")])
def test_a_plane_has_a_panel_for_each_model_and_a_hue_for_each_client(kinds):
    panel = {"client": [4, 4, 1], "xy": [[0.0, 0.0], [1.0, 1.0], [0.5, 0.25]]}
    drawn = tsne({"names": ["a", "b", "c", "d", "e"], **dict.fromkeys(kinds, panel)})
    assert described(drawn) == "Test features of 2 clients in the plane (t-SNE)"
    assert len(re.findall(r'<rect class="empty"', drawn)) == len(kinds)
    assert ">e<" in drawn
    assert ">b<" in drawn
    assert ">a<" not in drawn
    assert tsne({"names": []}) == ""


def test_inputs_that_were_received_have_the_names_of_their_classes():
    drawn = received_inputs({"classes": [2, 0, 7], "columns": 4, "png": "AAAA"}, ["cat", "dog", "cow"])
    assert re.findall(r"<text[^>]*>([^<]*)<", drawn) == ["cow", "cat", "7"]
    assert described(drawn) == "Inputs received from others, of 3 classes"
