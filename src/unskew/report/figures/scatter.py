"""Scores against another value of each method, with both intervals and the names of points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from unskew.report.figures.svg import (
    NARROW,
    WIDE,
    Line,
    Scale,
    end_labels,
    ends_of,
    line,
    plain_number,
    score_range,
    score_tick,
    svg,
    text,
    x_axis,
)
from unskew.scores import significant

BEYOND = 40.0
"""Width in pixels of the lane for points with infinite x."""


@dataclass(frozen=True)
class Point:
    """One method. x: infinite where it has none, which puts it into a lane of its own; low, high: its
    interval. y: a score;
    std: its deviation over seeds. colour: a class. note: what stands behind the name."""

    name: str
    colour: str
    x: float
    low: float
    high: float
    y: float
    std: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Axis:
    """label: of the x axis. unit: writes a value of x. log: whether it is logarithmic. beyond: the name of
    the lane for
    infinite x. share: whether what stands against it is in [0, 1], drawn in percent."""

    label: str
    unit: Callable[[float], str] = plain_number
    log: bool = False
    beyond: str = ""
    share: bool = True


def scatter(points: Sequence[Point], axis: Axis, y_label: str, *, width: int = WIDE) -> str:
    """SVG text; "" unless some point has a finite x and a score."""
    points = [p for p in points if not (math.isnan(p.x) or math.isnan(p.y))]
    if not any(math.isfinite(p.x) for p in points):
        return ""
    narrow = width == NARROW
    left, right, top, bottom = (40, 124, 26, 48) if narrow else (48, 260, 28, 50)
    height = max(260 if narrow else 320, top + bottom + 18 * len(points))
    beyond = any(math.isinf(p.x) for p in points)
    lane = width - right - BEYOND / 2
    x = _across(points, axis, left, width - right - (BEYOND if beyond else 0))
    ends = ends_of(v for p in points for v in (p.y - p.std, p.y + p.std))
    low, high, step = score_range(*ends, axis.share)
    y = Scale(low, high, height - bottom, top)
    parts = [text(left - 34, 12, y_label, "axis")]
    for v in np.arange(low, high + step / 2, step):
        parts += [line(left, float(y(v)), width - right, float(y(v)), "grid")]
        parts += [text(left - 8, float(y(v)) + 4, score_tick(float(v), step, axis.share), anchor="end")]
    parts.append(x_axis(x, height - bottom, top, axis.label, axis.unit, 4 if narrow else 7))
    if beyond:
        parts.append(line(lane, top, lane, height - bottom, "grid"))
        parts.append(text(lane, height - bottom + 17, axis.beyond, anchor="middle"))
    parts += [_bars(p, x, y, float(x(p.x)) if math.isfinite(p.x) else lane) for p in points]
    parts.append(_names(points, x, y, lane, narrow))
    words = "; ".join(f"{p.name}: {_x(p, axis)}, {_y(p, axis)}" for p in points)
    return svg(width, height, f"{y_label} against {axis.label}. {words}", parts)


def _across(points: Sequence[Point], axis: Axis, begin: float, end: float) -> Scale:
    ends = [v for p in points for v in (p.x, p.low, p.high) if math.isfinite(v)]
    if axis.log:
        positive = [v for v in ends if v > 0] or [1.0]
        return Scale(min(positive) / 1.5, max(positive) * 1.5, begin, end, log=True)
    low, high = min(0.0, *ends), max(0.0, *ends)
    return Scale(low, high + 0.05 * ((high - low) or 1.0), begin, end)


def _bars(p: Point, x: Scale, y: Scale, place: float) -> str:
    """The intervals, as a cross behind the dot."""
    parts = []
    if math.isfinite(p.low) and math.isfinite(p.high) and p.high > p.low:
        parts.append(
            line(float(x(p.low)), float(y(p.y)), float(x(p.high)), float(y(p.y)), f"mean {p.colour}")
        )
    if p.std > 0:
        parts.append(line(place, float(y(p.y - p.std)), place, float(y(p.y + p.std)), f"mean {p.colour}"))
    return "".join(parts)


def _names(points: Sequence[Point], x: Scale, y: Scale, lane: float, narrow: bool) -> str:
    """Dots, and names at the right edge with a leader to each dot."""
    edge = Scale(
        x.low, x.high, x.begin, lane + BEYOND / 2 if any(math.isinf(p.x) for p in points) else x.end, x.log
    )
    places = [lane if math.isinf(p.x) else float(x(p.x)) for p in points]
    at = [_value_at(edge, place) for place in places]
    lines = [Line(p.name, p.colour, np.array([v]), np.array([p.y]), np.zeros(1)) for p, v in zip(points, at)]
    return end_labels(lines, edge, y, ["" if narrow else p.note for p in points], 15 if narrow else 17)


def _value_at(scale: Scale, place: float) -> float:
    """The value that a scale maps to this coordinate."""
    share = (place - scale.begin) / (scale.end - scale.begin)
    if scale.log:
        return scale.low * (scale.high / scale.low) ** share
    return scale.low + share * (scale.high - scale.low)


def _y(p: Point, axis: Axis) -> str:
    return f"{100 * p.y:.1f} %" if axis.share else significant(p.y, 4)


def _x(p: Point, axis: Axis) -> str:
    return axis.unit(p.x) if math.isfinite(p.x) else axis.beyond
