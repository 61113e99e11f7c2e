"""What pictures say in numbers: their descriptions, and the places of what they draw, by hand."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np

from unskew.report.figures.curves import curves, roc
from unskew.report.figures.matrices import confusion, exposure
from unskew.report.figures.svg import SHADES, Line
from unskew.report.sections.clients import Strip, client_scores


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
    assert confusion([[0, 0], [0, 0]], ["a", "b"], "x") == ""
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
    (left, top), (w, h) = (110.0, 42.0), (64, 26)
    assert [(round(float(x) - left), round(float(y) - top)) for x, y in shades[SHADES]] == [(w, 0)]
    assert max(shades) == SHADES
    assert sum(len(cells) for cells in shades.values()) == 3
    (late,) = shades[min(shades)]
    # row: whose; column: who received it
    assert (round(float(late[0]) - left), round(float(late[1]) - top)) == (0, h)
    assert exposure({"share": 0.0, "since": [], "names": []}, 10) == ""


def test_of_errors_the_worst_client_is_the_one_with_the_largest():
    drawn = client_scores([Strip("flea", "m1", ["anna", "ben"], [2.0, 8.0], "rmse")], "error")
    assert "worst 8" in described(drawn)
    assert ": ben<" in drawn
    shares = client_scores([Strip("flea", "m1", ["anna", "ben"], [0.25, 0.75])], "accuracy, %")
    assert described(shares) == "Every client. flea: mean 50.0 %, worst 25.0 %"
