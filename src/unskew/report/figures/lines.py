"""A method's curve over rounds, and what pictures of curves have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from unskew.report.figures.svg import Scale, apart, label_with_value, points, shorten, tip

POINTS = 240
"""Longer series are thinned to so many points, evenly and with the last one kept: a screen cannot show more."""


@dataclass(frozen=True)
class Line:
    """x, and the mean and standard deviation of a score over seeds, all [T]. colour: a class, such as `m0`.

    share: whether the score lies in [0, 1] and is drawn in percent; all lines of a picture agree.
    """

    name: str
    colour: str
    x: np.ndarray
    y: np.ndarray
    band: np.ndarray
    dashed: bool = False
    share: bool = True

    def thinned(self) -> Line:
        """The same line with at most POINTS points, and without those that are no number."""
        keep = np.flatnonzero(~np.isnan(self.y))
        if len(keep) > POINTS:
            keep = keep[np.unique(np.linspace(0, len(keep) - 1, POINTS).round().astype(int))]
        spread = np.where(np.isfinite(self.band), self.band, 0.0)  # that of an infinite mean is none
        return replace(self, x=self.x[keep], y=self.y[keep], band=spread[keep])


def mean_line(
    name: str, colour: str, series: Sequence[tuple[np.ndarray, np.ndarray]], dashed: bool = False
) -> Line | None:
    """Mean and sample deviation over seeds at the rounds that all of them have; None if there are none.

    series: (rounds, values) of each seed; seeds without any value are left out.
    """
    seeds = [dict(zip(t.tolist(), v.tolist())) for t, v in series if len(t)]
    x = np.array(sorted(set.intersection(*(set(s) for s in seeds)))) if seeds else np.array([])
    if not len(x):
        return None
    values = np.array([[s[t] for t in x.tolist()] for s in seeds])
    with np.errstate(invalid="ignore"):
        band = values.std(0, ddof=1) if len(seeds) > 1 else np.zeros(len(x))
    return Line(name, colour, x, values.mean(0), band, dashed)


def band(c: Line, x: Scale, y: Scale) -> str:
    """One standard deviation around the mean, as an area; "" for a line without deviations."""
    if not float(c.band.max()) > 0:
        return ""
    upper, lower = (np.clip(c.y + sign * c.band, y.low, y.high) for sign in (1, -1))
    there, back = points(x(c.x), y(upper)), points(x(c.x)[::-1], y(lower)[::-1])
    return f'<polygon class="band {c.colour}" points="{there} {back}"/>'


def curve(c: Line, x: Scale, y: Scale, value: str) -> str:
    """The line itself. value: its last one, as the tooltip writes it."""
    kind = f"curve {c.colour}" + (" dashed" if c.dashed else "")
    title = tip(f"{c.name}: {value} at the end")
    return f'<polyline class="{kind}" points="{points(x(c.x), y(c.y))}">{title}</polyline>'


def end_labels(lines: Sequence[Line], x: Scale, y: Scale, values: Sequence[str], letters: int) -> str:
    """Each line's name and last value beside the picture's right edge, moved apart, with a leader to the line's end."""
    edge = x.end
    heights = [float(y(c.y[-1])) for c in lines]
    parts = []
    for c, height, label_height, value in zip(lines, heights, apart(heights, 17, y.end, y.begin), values):
        end = float(x(c.x[-1]))
        leader = f"M{end + 3:.1f} {height:.1f}L{edge + 8} {height:.1f}L{edge + 16} {label_height:.1f}"
        parts.append(f'<path class="leader {c.colour}" d="{leader}"/>')
        parts.append(end_dot(c, end, height))
        name = shorten(c.name, letters)
        parts.append(label_with_value(edge + 20, label_height + 4, name, value, f"end {c.colour}"))
    return "".join(parts)


def end_dot(c: Line, x: float, y: float) -> str:
    return f'<circle class="stop {c.colour}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
