"""Receiver operating curves on log axes, where few false positives are seen (Carlini et al., S&P 2022)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unskew.report.figures.lines import Line, curve, end_labels
from unskew.report.figures.svg import HUES, NARROW, WIDE, Scale, line, plain_number, svg, text, x_axis

LEAST = 1e-3
"""Where both axes begin."""


def roc(curves: Sequence[Mapping[str, Any]], *, width: int = WIDE) -> str:
    """SVG text. curves: {"name", "fpr": [P], "tpr": [P]}, shares of false and of true positives, both rising."""
    if not curves:
        return ""
    narrow = width == NARROW
    left, right, top, bottom = (52, 130, 12, 48) if narrow else (62, 300, 12, 50)
    height = 300 if narrow else max(340, top + bottom + 18 * len(curves))
    x = Scale(LEAST, 1.0, left, width - right, log=True)
    y = Scale(LEAST, 1.0, height - bottom, top, log=True)
    lines = [
        Line(str(c["name"]), f"m{i % HUES}", _from_least(c["fpr"]), _from_least(c["tpr"]), np.zeros(len(c["fpr"])))
        for i, c in enumerate(curves)
    ]
    parts = [line(x.begin, float(y(v)), x.end, float(y(v)), "grid") for v in y.ticks(5)]
    parts += [text(left - 8, float(y(v)) + 4, plain_number(v), anchor="end") for v in y.ticks(5)]
    parts.append(x_axis(x, height - bottom, top, "false positives, share", plain_number, 4))
    parts.append(line(x.begin, y.begin, x.end, y.end, "base"))
    at_one_percent = [max((t for f, t in zip(c["fpr"], c["tpr"]) if f <= 0.01), default=0.0) for c in curves]
    values = [f"{value:.1%} at 1 %" for value in at_one_percent]
    parts += [curve(c, x, y, value) for c, value in zip(lines, values)]
    parts.append(end_labels(lines, x, y, ["" if narrow else v for v in values], 16 if narrow else 34))
    words = "; ".join(f"{c.name} catches {value}" for c, value in zip(lines, values))
    return svg(width, height, f"True positives against false positives on log axes. {words}", parts)


def _from_least(shares: Sequence[float]) -> np.ndarray:
    """Shares, none below where the axes begin."""
    return np.clip(np.asarray(shares, dtype=float), LEAST, 1.0)
