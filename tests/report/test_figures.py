"""Pictures hold every client and curve, inside their frame, with labels that do not overlap."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from unskew.report.analysis.runs import Attendance
from unskew.report.figures.bars import histograms
from unskew.report.figures.curves import curves
from unskew.report.figures.svg import POINTS, WIDTH, Line
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


def test_attendance_tells_absent_from_not_asked():
    rows = [Attendance(1, [0, 1], [0]), Attendance(2, [2], [2])]
    drawn = attendance(rows, 3)
    answered, absent = (
        sum(d.count("M") for d in re.findall(rf'<path class="{k}" d="([^"]*)"', drawn))
        for k in ("answered", "absent")
    )
    assert answered == 2 + 2  # a bar per round, a cell per answer
    assert absent == 1 + 1
    assert "did not answer" in drawn
    dropped = attendance([Attendance(1, [0, 1], [0], received=2)], 2)
    assert "asked, no reply used" in dropped
    assert "did not answer" not in dropped
    assert "1.0 of 2 clients had a reply used in a round" in dropped
    assert attendance([Attendance(1, [0, 1], [0, 1])], 2) == ""
    assert attendance([], 2) == ""


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
