"""Curves with bands over seeds, named at their ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from unskew.report.svg import (
    NARROW,
    WIDE,
    Scale,
    apart,
    data,
    least_step,
    line,
    percent_range,
    plain_number,
    points,
    shorten,
    svg,
    text,
    tip,
    x_axis,
)

POINTS = 240
"""More rounds than this are thinned to it, evenly and with the last kept: a screen has no more to show."""


@dataclass(frozen=True)
class Line:
    """A curve: x, and the mean and standard deviation of an accuracy over seeds. colour: a class, like `m0`."""

    name: str
    colour: str
    x: np.ndarray
    y: np.ndarray
    band: np.ndarray
    dashed: bool = False

    def thinned(self) -> Line:
        if len(self.x) <= POINTS:
            return self
        keep = np.unique(np.linspace(0, len(self.x) - 1, POINTS).round().astype(int))
        return Line(self.name, self.colour, self.x[keep], self.y[keep], self.band[keep], self.dashed)


def curves(
    lines: Sequence[Line],
    x_label: str,
    y_label: str,
    *,
    width: int = WIDE,
    log_x: bool = False,
    unit: Callable[[float], str] = plain_number,
) -> str:
    """SVG text; "" without lines. y is an accuracy in [0, 1], drawn in percent; `unit` writes a value of x."""
    lines = [c.thinned() for c in lines if len(c.x)]
    if not lines:
        return ""
    narrow = width == NARROW
    left, right, top, bottom = (40, 124, 26, 48) if narrow else (48, 178, 28, 50)
    height = max(300 if narrow else 400, top + bottom + 18 * len(lines))
    x, y, step = _scales(lines, (left, width - right), (height - bottom, top), log_x)
    parts = [
        _y_axis(y, step, left, width - right, y_label),
        x_axis(x, height - bottom, top, x_label, unit, 4 if narrow else 7),
    ]
    parts += [_band(c, x, y) for c in lines if float(c.band.max()) > 0]
    parts += [_curve(c, x, y) for c in lines]
    parts.append(_ends(lines, x, y, width - right, 9 if narrow else 17))
    told = "; ".join(f"{c.name} ends at {100 * c.y[-1]:.1f} %" for c in lines)
    return svg(width, height, f"{y_label} against {x_label}. {told}", parts, _for_script(lines, x, y, x_label, unit))


def _scales(
    lines: Sequence[Line], across: tuple[float, float], up: tuple[float, float], log_x: bool
) -> tuple[Scale, Scale, float]:
    xs = np.concatenate([c.x for c in lines])
    x0, x1 = float(xs.min()), float(xs.max())
    if x1 <= x0:
        x0, x1 = (x0 * 0.9, x0 * 1.1) if log_x else (x0 - 1, x0 + 1)
    low, high, step = percent_range(
        min(float((c.y - c.band).min()) for c in lines), max(float((c.y + c.band).max()) for c in lines)
    )
    return Scale(x0, x1, *across, log=log_x, least=least_step(xs)), Scale(low, high, *up), step


def _y_axis(y: Scale, step: float, begin: float, end: float, label: str) -> str:
    decimals = 1 if step < 0.01 else 0
    parts = [text(begin - 34, 12, label, "axis")]
    for v in np.arange(y.low, y.high + step / 2, step):
        at = float(y(v))
        parts += [line(begin, at, end, at, "grid"), text(begin - 8, at + 4, f"{100 * v:.{decimals}f}", at="end")]
    return "".join(parts)


def _band(c: Line, x: Scale, y: Scale) -> str:
    upper, lower = (np.clip(c.y + s * c.band, y.low, y.high) for s in (1, -1))
    there, back = points(x(c.x), y(upper)), points(x(c.x)[::-1], y(lower)[::-1])
    return f'<polygon class="band {c.colour}" points="{there} {back}"/>'


def _curve(c: Line, x: Scale, y: Scale) -> str:
    kind = f"curve {c.colour}" + (" dashed" if c.dashed else "")
    told = tip(f"{c.name}: {100 * c.y[-1]:.1f} % at the end")
    return f'<polyline class="{kind}" points="{points(x(c.x), y(c.y))}">{told}</polyline>'


def _ends(lines: Sequence[Line], x: Scale, y: Scale, edge: float, letters: int) -> str:
    early = [c for c in lines if _room(c, lines, x, y, edge, letters)]
    late = [c for c in lines if all(c is not e for e in early)]
    own = [float(y(c.y[-1])) for c in late]
    parts = [_at_the_end(c, x, y, letters) for c in early]
    for c, at, to in zip(late, own, apart(own, 17, y.end, y.begin)):
        end = float(x(c.x[-1]))
        parts.append(
            f'<path class="leader {c.colour}" d="M{end + 3:.1f} {at:.1f}L{edge + 8} {at:.1f}L{edge + 16} {to:.1f}"/>'
        )
        parts.append(f'<circle class="stop {c.colour}" cx="{end:.1f}" cy="{at:.1f}" r="3"/>')
        value = f' <tspan class="value">{100 * c.y[-1]:.1f}</tspan>'
        label = text(edge + 20, to + 4, shorten(c.name, letters), f"end {c.colour}")
        parts.append(label.replace("</text>", f"{value}</text>"))
    return "".join(parts)


def _room(c: Line, lines: Sequence[Line], x: Scale, y: Scale, edge: float, letters: int) -> bool:
    """Whether a curve that ends early can be named right there, without a label over another curve."""
    end, at = float(x(c.x[-1])), float(y(c.y[-1]))
    wide = 7.2 * (min(len(c.name), letters) + 7)
    if end + wide > edge:
        return False
    others = [(np.atleast_1d(x(o.x)), np.atleast_1d(y(o.y))) for o in lines if o is not c]
    return not any(np.any(abs(np.interp(np.linspace(end, end + wide, 9), a, b) - at) < 16) for a, b in others)


def _at_the_end(c: Line, x: Scale, y: Scale, letters: int) -> str:
    end, at = float(x(c.x[-1])), float(y(c.y[-1]))
    label = text(end + 8, at + 4, shorten(c.name, letters), f"end {c.colour}")
    value = f' <tspan class="value">{100 * c.y[-1]:.1f}</tspan></text>'
    return f'<circle class="stop {c.colour}" cx="{end:.1f}" cy="{at:.1f}" r="3"/>' + label.replace("</text>", value)


def _for_script(lines: Sequence[Line], x: Scale, y: Scale, x_label: str, unit: Callable[[float], str]) -> str:
    """What the tooltip says: per curve the name, and values in percent at each place."""
    series = [
        {
            "n": c.name,
            "c": c.colour,
            "x": [round(v, 1) for v in np.atleast_1d(x(c.x)).tolist()],
            "l": [unit(v) for v in c.x.tolist()] if unit is not plain_number else [int(v) for v in c.x.tolist()],
            "v": [round(100 * v, 1) for v in c.y.tolist()],
            "s": [round(100 * v, 1) for v in c.band.tolist()] if float(c.band.max()) > 0 else [],
        }
        for c in lines
    ]
    low, high = (round(v, 4) if math.isfinite(v) else 0 for v in (y.low, y.high))
    return data("plot", {"t": x_label, "b": [low, high, round(y.begin, 1), round(y.end, 1)], "s": series})
