"""Values in their own unit, not in percent, against rounds or anything else; each curve is named at its end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unskew.report.figures.lines import Line, band, curve, end_labels
from unskew.report.figures.svg import NARROW, WIDE, Scale, ends_of, least_step, line, plain_number, svg, text, x_axis
from unskew.scores import significant


def series(lines: Sequence[Line], y_label: str, *, width: int = WIDE, x_label: str = "round") -> str:
    """SVG text; "" unless some line has two points."""
    lines = [c for c in (c.thinned() for c in lines) if len(c.x) > 1]
    if not lines:
        return ""
    narrow = width == NARROW
    left, right, top, bottom = (46, 124, 12, 48) if narrow else (56, 178, 12, 50)
    height = max(220 if narrow else 240, top + bottom + 18 * len(lines))
    xs = np.concatenate([c.x for c in lines])
    x = Scale(float(xs.min()), float(xs.max()), left, width - right, least=least_step(xs))
    y = Scale(*_range(lines), height - bottom, top)
    ends = [significant(float(c.y[-1]), 3) for c in lines]
    parts = [_y_axis(y, left, width - right)]
    parts.append(x_axis(x, height - bottom, top, x_label, plain_number, 4 if narrow else 7))
    parts += [band(c, x, y) for c in lines]
    parts += [curve(c, x, y, end) for c, end in zip(lines, ends)]
    parts.append(end_labels(lines, x, y, ends, 9 if narrow else 15))
    words = "; ".join(f"{c.name} ends at {end}" for c, end in zip(lines, ends))
    return svg(width, height, f"{y_label} against {x_label}. {words}", parts)


def _y_axis(y: Scale, begin: float, end: float) -> str:
    parts = []
    for v in y.ticks(5):
        height = float(y(v))
        parts += [line(begin, height, end, height, "grid")]
        parts += [text(begin - 8, height + 4, plain_number(round(v, 9)), anchor="end")]
    return "".join(parts)


def _range(lines: Sequence[Line]) -> tuple[float, float]:
    """The ends of the y axis; it begins at 0 unless all values are far from it."""
    low, high = ends_of(v for c in lines for v in (*(c.y - c.band), *(c.y + c.band)))
    if 0 <= low < 0.6 * high:
        low = 0.0
    pad = 0.05 * ((high - low) or abs(high) or 1.0)
    return (low if low == 0 else low - pad), high + pad
