"""Colours of the report can be told apart.

WCAG 2 asks for a contrast of 4.5 between small text and its background, and of 3 for the lines of a picture.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from unskew.report.figures.svg import HUES
from unskew.report.sections import render


def luminance(colour):
    """Relative luminance of (red, green, blue) in [0, 255], as WCAG 2 defines it."""
    linear = [v / 3294.6 if v <= 10.31 else ((v / 255 + 0.055) / 1.055) ** 2.4 for v in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def rgb(text):
    text = text if len(text) == 7 else "#" + "".join(2 * c for c in text[1:])
    return [int(text[i : i + 2], 16) for i in (1, 3, 5)]


@pytest.fixture(scope="module")
def style():
    return str(render("style.css.j2"))


def variables_of(style, theme):
    light, _, rest = style.partition("@media screen and (prefers-color-scheme: dark)")
    return dict(re.findall(r"--([\w-]+): (#\w+);", rest.partition("\n}\n")[0] if theme == "dark" else light))


DEFICIENCIES = {
    "none": np.eye(3),
    "protanopia": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0519]],
    "deuteranopia": [[0.3673, 0.8607, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9690]],
    "tritanopia": [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]],
}
"""What a reader sees of linear RGB (Machado, Oliveira and Fernandes, IEEE TVCG 2009, table 1, severity 1)."""
XYZ = [[0.4125, 0.3576, 0.1804], [0.2127, 0.7152, 0.0722], [0.0193, 0.1192, 0.9503]]


def lab(colours, deficiency="none"):
    """CIE L*a*b* [N, 3] of sRGB colours in [0, 255], white D65: a distance of 2.3 is just noticeable."""
    srgb = np.array(colours) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(linear @ np.array(DEFICIENCIES[deficiency]).T, 0, 1)
    xyz = seen @ np.array(XYZ).T / [0.9505, 1, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116).T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], 1)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_methods_differ_for_every_reader_and_the_first_four_in_grey(style, theme):
    variables = variables_of(style, theme)
    colours = [rgb(variables[f"c{i}"]) for i in range(HUES)]
    assert min(contrast(c, rgb(variables["card"])) for c in colours) >= 3
    for deficiency in DEFICIENCIES:
        seen = lab(colours, deficiency)
        distances = np.linalg.norm(seen[:, None] - seen, axis=2)[~np.eye(HUES, dtype=bool)]
        assert distances.min() > 12, deficiency
    assert np.diff(np.sort(lab(colours[:4])[:, 0])).min() > 9
