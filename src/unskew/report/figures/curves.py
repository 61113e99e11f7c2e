"""Curves: scores against rounds or bytes, values in their own unit, and receiver operating curves.

Scores are drawn in percent or in their own unit, with bands over seeds; each curve is named at its end.
Receiver operating curves have log axes, which show low rates of false positives (Carlini et al., S&P 2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unskew.report.figures.svg import (
    NARROW,
    WIDE,
    Line,
    Scale,
    band,
    curve,
    data_attribute,
    end_dot,
    end_labels,
    ends_of,
    label_with_value,
    least_step,
    line,
    numbered_colour,
    plain_number,
    score_range,
    score_tick,
    shorten,
    svg,
    text,
    x_axis,
)
from unskew.scores import significant


def curves(
    lines: Sequence[Line],
    x_label: str,
    y_label: str,
    *,
    width: int = WIDE,
    log_x: bool = False,
    unit: Callable[[float], str] = plain_number,
) -> str:
    """SVG text of lines with scores as y; "" without lines. unit: the format of a value of x."""
    lines = [c for c in (c.thinned() for c in lines) if len(c.x)]
    if not lines:
        return ""
    narrow = width == NARROW
    left, right, top, bottom = (40, 124, 26, 48) if narrow else (48, 178, 28, 50)
    height = max(300 if narrow else 400, top + bottom + 18 * len(lines))
    x, y, step = _scales(lines, (left, width - right), (height - bottom, top), log_x)
    parts = [
        _y_axis(y, step, (left, width - right), y_label, lines[0].share),
        x_axis(x, height - bottom, top, x_label, unit, 4 if narrow else 7),
    ]
    parts += [band(c, x, y) for c in lines]
    parts += [curve(c, x, y, _last(c, " %")) for c in lines]
    parts.append(_names(lines, x, y, 9 if narrow else 17))
    ends = "; ".join(f"{c.name} ends at {_last(c, ' %')}" for c in lines)
    return svg(
        width,
        height,
        f"{y_label} against {x_label}. {ends}",
        parts,
        _for_script(lines, (x, y), (x_label, y_label), unit),
    )


def _scales(
    lines: Sequence[Line], across: tuple[float, float], up: tuple[float, float], log_x: bool
) -> tuple[Scale, Scale, float]:
    """(x, y, step of the ticks of y)."""
    xs = np.concatenate([c.x for c in lines])
    x0, x1 = float(xs.min()), float(xs.max())
    if x1 <= x0:
        x0, x1 = (x0 * 0.9, x0 * 1.1) if log_x else (x0 - 1, x0 + 1)
    low, high, step = score_range(
        *ends_of(v for c in lines for v in (*(c.y - c.band), *(c.y + c.band))), lines[0].share
    )
    return Scale(x0, x1, *across, log=log_x, least=least_step(xs)), Scale(low, high, *up), step


def _last(c: Line, unit: str = "") -> str:
    """The last value of a line; the unit follows a share."""
    return f"{100 * c.y[-1]:.1f}{unit}" if c.share else significant(float(c.y[-1]), 4)


def _y_axis(y: Scale, step: float, ends: tuple[float, float], label: str, share: bool) -> str:
    begin, end = ends
    parts = [text(begin - 34, 12, label, "axis")]
    for v in np.arange(y.low, y.high + step / 2, step):
        height = float(y(v))
        parts += [line(begin, height, end, height, "grid")]
        parts += [text(begin - 8, height + 4, score_tick(float(v), step, share), anchor="end")]
    return "".join(parts)


def _names(lines: Sequence[Line], x: Scale, y: Scale, letters: int) -> str:
    """The name and last value of each line, at its end if there is room, else at the right edge."""
    early = [c for c in lines if _has_room(c, lines, x, y, letters)]
    late = [c for c in lines if all(c is not e for e in early)]
    at_ends = [_name_at_end(c, x, y, letters) for c in early]
    return "".join([*at_ends, end_labels(late, x, y, [_last(c) for c in late], letters)])


def _has_room(c: Line, lines: Sequence[Line], x: Scale, y: Scale, letters: int) -> bool:
    """Whether the label of a line that ends early covers no other line."""
    end, height = float(x(c.x[-1])), float(y(c.y[-1]))
    wide = 7.2 * (min(len(c.name), letters) + 7)
    if end + wide > x.end:
        return False
    others = [(np.atleast_1d(x(o.x)), np.atleast_1d(y(o.y))) for o in lines if o is not c]
    return not any(
        np.any(abs(np.interp(np.linspace(end, end + wide, 9), a, b) - height) < 16) for a, b in others
    )


def _name_at_end(c: Line, x: Scale, y: Scale, letters: int) -> str:
    end, height = float(x(c.x[-1])), float(y(c.y[-1]))
    name = shorten(c.name, letters)
    label = label_with_value(end + 8, height + 4, name, _last(c), f"end {c.colour}")
    return end_dot(c, end, height) + label


def _for_script(
    lines: Sequence[Line], scales: tuple[Scale, Scale], labels: tuple[str, str], unit: Callable[[float], str]
) -> str:
    """The data of the script's tooltip: the name and the values of each line. scales, labels: of x and y."""
    x, y = scales
    share = lines[0].share
    digits = 1 if share else int(np.clip(3 - math.floor(math.log10(max(abs(y.high), 1e-9))), 0, 9))
    factor = 100 if share else 1
    finite = [replace(c, x=c.x[k], y=c.y[k], band=c.band[k]) for c in lines if (k := np.isfinite(c.y)).any()]
    series = [
        {
            "n": c.name,
            "c": c.colour,
            "x": [round(v, 1) for v in np.atleast_1d(x(c.x)).tolist()],
            "l": [unit(v) for v in c.x.tolist()]
            if unit is not plain_number
            else [int(v) for v in c.x.tolist()],
            "v": [round(factor * v, digits) for v in c.y.tolist()],
            "s": [round(factor * v, digits) for v in c.band.tolist()] if float(c.band.max()) > 0 else [],
        }
        for c in finite
    ]
    low, high = ((round(v, 4) if share else v / 100) if math.isfinite(v) else 0 for v in (y.low, y.high))
    plot = {"t": labels[0], "y": labels[1], "b": [low, high, round(y.begin, 1), round(y.end, 1)], "s": series}
    return data_attribute("plot", plot if share else {**plot, "d": digits})


def series(lines: Sequence[Line], y_label: str, *, width: int = WIDE, x_label: str = "round") -> str:
    """SVG text of lines in their own unit; "" unless some line has two points."""
    lines = [c for c in (c.thinned() for c in lines) if len(c.x) > 1]
    if not lines:
        return ""
    narrow = width == NARROW
    left, right, top, bottom = (46, 124, 12, 48) if narrow else (56, 178, 12, 50)
    height = max(220 if narrow else 240, top + bottom + 18 * len(lines))
    xs = np.concatenate([c.x for c in lines])
    x = Scale(float(xs.min()), float(xs.max()), left, width - right, least=least_step(xs))
    y = Scale(*_series_range(lines), height - bottom, top)
    ends = [significant(float(c.y[-1]), 3) for c in lines]
    parts = [_series_y_axis(y, left, width - right)]
    parts.append(x_axis(x, height - bottom, top, x_label, plain_number, 4 if narrow else 7))
    parts += [band(c, x, y) for c in lines]
    parts += [curve(c, x, y, end) for c, end in zip(lines, ends)]
    parts.append(end_labels(lines, x, y, ends, 9 if narrow else 15))
    words = "; ".join(f"{c.name} ends at {end}" for c, end in zip(lines, ends))
    return svg(width, height, f"{y_label} against {x_label}. {words}", parts)


def _series_y_axis(y: Scale, begin: float, end: float) -> str:
    parts = []
    for v in y.ticks(5):
        height = float(y(v))
        parts += [line(begin, height, end, height, "grid")]
        parts += [text(begin - 8, height + 4, plain_number(round(v, 9)), anchor="end")]
    return "".join(parts)


def _series_range(lines: Sequence[Line]) -> tuple[float, float]:
    """The ends of the y axis, which begins at 0 unless all values are far from it."""
    low, high = ends_of(v for c in lines for v in (*(c.y - c.band), *(c.y + c.band)))
    if 0 <= low < 0.6 * high:
        low = 0.0
    pad = 0.05 * ((high - low) or abs(high) or 1.0)
    return (low if low == 0 else low - pad), high + pad


LEAST_SHARE = 1e-3
"""The lower end of both axes."""


def roc(curves: Sequence[Mapping[str, Any]], *, width: int = WIDE) -> str:
    """SVG text. curves: {"name", "fpr": [P], "tpr": [P]}, shares of false and of true positives, both
    rising."""
    if not curves:
        return ""
    narrow = width == NARROW
    left, right, top, bottom = (52, 130, 12, 48) if narrow else (62, 300, 12, 50)
    height = 300 if narrow else max(340, top + bottom + 18 * len(curves))
    x = Scale(LEAST_SHARE, 1.0, left, width - right, log=True)
    y = Scale(LEAST_SHARE, 1.0, height - bottom, top, log=True)
    lines = [
        Line(
            str(c["name"]),
            numbered_colour(i),
            _clipped(c["fpr"]),
            _clipped(c["tpr"]),
            np.zeros(len(c["fpr"])),
        )
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


def _clipped(shares: Sequence[float]) -> np.ndarray:
    """The shares, clipped to the axes."""
    return np.clip(np.asarray(shares, dtype=float), LEAST_SHARE, 1.0)
