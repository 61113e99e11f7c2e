"""Pictures hold every client and curve, inside their frame, with labels that do not overlap."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from unskew.report.analysis.runs import Attendance
from unskew.report.figures import svg
from unskew.report.figures.curves import curves
from unskew.report.figures.measures import confusion, exposure, histograms
from unskew.report.figures.svg import POINTS, SHADES, WIDTH, Line, Scale
from unskew.report.sections.attendance import picture as attendance
from unskew.report.sections.clients import Strip, client_scores
from unskew.report.sections.partition import partition_map

EVIL = '<script>alert("x")</script>'


def federation(K, C, names=None):
    labels = np.random.default_rng(K).integers(0, 30, (K, C))
    return {
        "labels": labels.tolist(),
        "classes": [f"class {c}" for c in range(C)],
        "names": names or [f"client-{k}" for k in range(K)],
        "clients": K,
    }


def flat(name, level, T=20, end=None):
    x = np.arange(1, (end or T) + 1)
    return Line(name, "m0", x, np.full(len(x), level), np.full(len(x), 0.01))


def texts(drawn, kind):
    return [
        (float(x), float(y), w)
        for x, y, w in re.findall(
            rf'<text class="{kind}[^"]*" x="([-\d.]+)" y="([-\d.]+)"[^>]*>([^<]*)', drawn
        )
    ]


@pytest.mark.parametrize("n", [1, 5, 30])
def test_names_at_the_ends_of_curves_never_overlap(n):
    drawn = curves([flat(f"method {i}", 0.8 + 0.001 * i) for i in range(n)], "round", "accuracy, %")
    ET.fromstring(drawn)
    found = texts(drawn, "end")
    assert len(found) == n
    ys = sorted(y for _, y, _ in found)
    assert min(np.diff(ys), default=99) >= 15
    height = float(re.search(r'viewBox="0 0 \d+ (\d+)"', drawn)[1])
    assert ys[0] > 0
    assert ys[-1] < height


def test_long_runs_are_thinned_but_end_where_they_end():
    drawn = curves(
        [Line("m", "m0", np.arange(5000), np.linspace(0.1, 0.876, 5000), np.zeros(5000))], "round", "%"
    )
    assert len(re.search(r'points="([^"]*)"', drawn)[1].split()) == POINTS
    assert ">87.6</tspan>" in drawn
    assert "<polygon" not in drawn  # one seed has no band


@pytest.mark.parametrize(("K", "C"), [(1, 2), (20, 10), (500, 62)])
def test_the_partition_map_fits_its_frame(K, C):
    fed = federation(K, C)
    drawn = partition_map(fed)
    ET.fromstring(drawn)
    shown = min(K, 200)
    cells = re.findall(r'class="q\d" d="([^"]*)"', drawn)
    assert sum(d.count("M") for d in cells) == np.count_nonzero(np.array(fed["labels"])[:shown])
    height = float(re.search(r'viewBox="0 0 \d+ (\d+)"', drawn)[1])
    boxes = [
        tuple(map(float, b))
        for d in cells
        for b in re.findall(r"M([\d.e+-]+) ([\d.e+-]+)h([\d.e+-]+)v([\d.e+-]+)", d)
    ]
    assert max(x + w for x, _, w, _ in boxes) <= WIDTH
    assert max(y + h for _, y, _, h in boxes) <= height
    if K == 500:
        assert "the first 200 of 500 clients" in drawn


def test_a_sample_of_several_labels_is_one_sample():
    """Their counts add up to more than there are samples."""
    fed = {"labels": [[9, 8, 7], [0, 2, 0]], "classes": ["a", "b", "c"], "names": ["x", "y"], "clients": 2}
    drawn = partition_map({**fed, "sizes": {"train": [10, 4]}})
    assert "4 to 10 samples" in drawn
    assert ">10</text>" in drawn  # beside the bars
    assert '"n":[10,4],"u":"samples"' in drawn
    assert '"p":1' not in drawn
    pixels = partition_map({**fed, "sizes": {"train": [10, 4]}, "unit": "pixels"})
    assert '"u":"images","p":1' in pixels


def test_every_client_has_a_dot_and_the_worst_its_name():
    strip = Strip("flea", "m1", ["anna", "ben", "carl"], [0.9, 0.31, 0.8])
    drawn = client_scores([strip], "accuracy, %")
    ET.fromstring(drawn)
    assert re.search(r'class="dots m1" d="([^"]*)"', drawn)[1].count("M") == 3
    assert "worst 31.0 %: ben" in drawn
    assert ">67.0<" in drawn
    same = client_scores([Strip("flea", "m1", list("abc"), [0.3, 0.3, 0.8])], "")
    assert "worst 30.0 %: 2 clients" in same


def test_attendance_has_a_line_for_those_who_were_asked_and_one_for_those_who_answered():
    rows = [Attendance(1, [0, 1], [0]), Attendance(2, [2], [2])]
    assert (
        described(attendance(rows, 3)) == "clients, of 3 against round. asked ends at 1; answered ends at 1"
    )
    dropped = attendance([Attendance(1, [0, 1], [0], received=2)], 2)
    assert described(dropped) == "clients, of 2 against round. asked ends at 2; reply used ends at 1"
    assert attendance([Attendance(1, [0, 1], [0, 1])], 2) == attendance([], 2) == ""


@pytest.mark.parametrize(
    "drawn",
    [
        curves([Line(EVIL, "m0", np.arange(2), np.ones(2), np.zeros(2))], EVIL, EVIL),
        client_scores([Strip(EVIL, "m0", [EVIL, EVIL], [0.1, 0.2])], EVIL),
        partition_map({"labels": [[1]], "classes": [EVIL], "names": [EVIL], "clients": 1}),
        histograms({"buffer": [1], "local": [], "mixed": []}, [EVIL]),
    ],
)
def test_names_cannot_break_out(drawn):
    assert "<script" not in drawn
    ET.fromstring(drawn)


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


def test_class_shares_have_a_row_for_the_buffer_and_two_for_each_client():
    drawn = histograms(
        {"buffer": [1, 3], "local": [[4, 0], [0, 0]], "mixed": [[1, 1]], "names": ["x", "y"]}, ["a", "b"]
    )
    assert re.findall(r'<text class="count[^>]*>(\d+)<', drawn) == ["25", "75", "100", "50", "50"]
    assert [w for w in ("buffer", "own, x", "mix, x", "own, y") if w in drawn] == [
        "buffer",
        "own, x",
        "mix, x",
    ]


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
