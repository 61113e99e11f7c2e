"""Curves: scores over rounds or bytes, and values in their own unit, with bands over seeds; each is named at
its end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from unskew.report.figures.svg import (
    WIDTH,
    Line,
    Scale,
    data_attribute,
    ends_of,
    label_with_value,
    least_step,
    line,
    plain_number,
    score_range,
    score_tick,
    separate_labels,
    shorten,
    svg,
    text,
    tooltip,
    x_axis,
)
from unskew.scores import significant

Unit = Callable[[float], str]
"""Writes a value of x."""


def curves(
    lines: Sequence[Line], x_label: str, y_label: str, *, log_x: bool = False, unit: Unit = plain_number
) -> str:
    """SVG text of lines; "" without lines. Shares are drawn in percent."""
    lines = [c for c in (c.thinned() for c in lines) if len(c.x)]
    if not lines:
        return ""
    share, (left, right, top, bottom) = lines[0].share, (48, 178, 28, 50)
    height = max(400, top + bottom + 18 * len(lines))
    x = _x_scale(lines, left, WIDTH - right, log_x)
    low, high, step = score_range(*_ends(lines), share)
    y = Scale(low, high, height - bottom, top)
    parts = [text(left - 34, 12, y_label, "axis"), *_y_axis(y, _score_ticks(y, step, share), x.begin, x.end)]
    parts.append(x_axis(x, height - bottom, top, x_label, unit, 7))
    last = [f"{100 * c.y[-1]:.1f}" if share else significant(float(c.y[-1]), 4) for c in lines]
    written = [f"{value} %" if share else value for value in last]
    parts += [*(_band(c, x, y) for c in lines), *(_curve(c, x, y, v) for c, v in zip(lines, written))]
    ends = [_End(c.name, c.colour, float(x(c.x[-1])), float(y(c.y[-1])), v) for c, v in zip(lines, last)]
    parts.append(_end_labels(ends, WIDTH - right, (top, height - bottom), 17))
    words = "; ".join(f"{c.name} ends at {value}" for c, value in zip(lines, written))
    data = _for_script(lines, (x, y), (x_label, y_label), unit)
    return svg(height, f"{y_label} against {x_label}. {words}", parts, data)


def _ends(lines: Sequence[Line]) -> tuple[float, float]:
    """The lowest and the highest value of all bands."""
    return ends_of(v for c in lines for v in (*(c.y - c.band), *(c.y + c.band)))


def _x_scale(lines: Sequence[Line], begin: float, end: float, log: bool = False) -> Scale:
    xs = np.concatenate([c.x for c in lines])
    low, high = float(xs.min()), float(xs.max())
    if high <= low:
        low, high = (low * 0.9, low * 1.1) if log else (low - 1, low + 1)
    return Scale(low, high, begin, end, log=log, least=least_step(xs))


def _score_ticks(y: Scale, step: float, share: bool) -> list[tuple[float, str]]:
    return [(v, score_tick(v, step, share)) for v in np.arange(y.low, y.high + step / 2, step).tolist()]


def _y_axis(y: Scale, ticks: Iterable[tuple[float, str]], begin: float, end: float) -> list[str]:
    """Grid lines from `begin` to `end`. ticks: values and their labels."""
    parts = []
    for value, label in ticks:
        height = float(y(value))
        parts += [line(begin, height, end, height, "grid"), text(begin - 8, height + 4, label, anchor="end")]
    return parts


def _points(x: Sequence[float], y: Sequence[float]) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y))


def _band(c: Line, x: Scale, y: Scale) -> str:
    """One standard deviation around the mean, as an area; "" for a line without deviations."""
    if not float(c.band.max()) > 0:
        return ""
    upper, lower = (np.clip(c.y + sign * c.band, y.low, y.high) for sign in (1, -1))
    forward, back = _points(x(c.x), y(upper)), _points(x(c.x)[::-1], y(lower)[::-1])
    return f'<polygon class="band {c.colour}" points="{forward} {back}"/>'


def _curve(c: Line, x: Scale, y: Scale, value: str) -> str:
    """The line as a polyline. value: the last value for the tooltip."""
    kind = f"curve {c.colour}" + (" dashed" if c.dashed else "")
    title = tooltip(f"{c.name}: {value} at the end")
    return f'<polyline class="{kind}" points="{_points(x(c.x), y(c.y))}">{title}</polyline>'


@dataclass(frozen=True)
class _End:
    """The place of the last point of a line, and the last value as text."""

    name: str
    colour: str
    x: float
    y: float
    value: str


def _end_labels(ends: Sequence[_End], edge: float, across: tuple[float, float], letters: int) -> str:
    """The names and last values at the right edge, moved apart within `across`, with leaders to the ends."""
    parts = []
    for end, height in zip(ends, separate_labels([end.y for end in ends], 17, *across)):
        leader = f"M{end.x + 3:.1f} {end.y:.1f}L{edge + 8} {end.y:.1f}L{edge + 16} {height:.1f}"
        dot = f'<circle class="stop {end.colour}" cx="{end.x:.1f}" cy="{end.y:.1f}" r="3"/>'
        parts += [f'<path class="leader {end.colour}" d="{leader}"/>', dot]
        name = shorten(end.name, letters)
        parts.append(label_with_value(edge + 20, height + 4, name, end.value, f"end {end.colour}"))
    return "".join(parts)


def _for_script(
    lines: Sequence[Line], scales: tuple[Scale, Scale], labels: tuple[str, str], unit: Unit
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
            "l": [int(v) if unit is plain_number else unit(v) for v in c.x.tolist()],
            "v": [round(factor * v, digits) for v in c.y.tolist()],
            "s": [round(factor * v, digits) for v in c.band.tolist()] if float(c.band.max()) > 0 else [],
        }
        for c in finite
    ]
    low, high = ((round(v, 4) if share else v / 100) if math.isfinite(v) else 0 for v in (y.low, y.high))
    plot = {"t": labels[0], "y": labels[1], "b": [low, high, round(y.begin, 1), round(y.end, 1)], "s": series}
    return data_attribute("plot", plot if share else {**plot, "d": digits})
