"""Reliability diagrams: the accuracy of a model by its confidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unskew.report.figures.svg import NARROW, WIDE, Scale, line, svg, text, tooltip, x_axis

LEFT, TOP, BOTTOM, SIDE = 62.0, 12.0, 50.0, 300.0
NEVER = 2.0
"""The height of a bar with accuracy 0, which would be invisible otherwise."""


def reliability(measured: Mapping[str, Any], colour: str, *, width: int = WIDE) -> str:
    """Bars of accuracy by bin of confidence, beside the line on which both are equal; "" without samples.

    measured: {"bins": {"count", "confidence", "accuracy": [B]}, "ece"}. colour: the method's class.
    """
    bins = measured["bins"]
    total, count = sum(bins["count"]), len(bins["count"])
    if not total:
        return ""
    side = SIDE if width != NARROW else width - LEFT - 16
    x, y = Scale(0.0, 1.0, LEFT, LEFT + side), Scale(0.0, 1.0, TOP + side, TOP)
    parts = [line(x.begin, float(y(v)), x.end, float(y(v)), "grid") for v in y.ticks(5)]
    parts += [text(LEFT - 8, float(y(v)) + 4, _percent(v), anchor="end") for v in y.ticks(5)]
    for b, (n, accuracy) in enumerate(zip(bins["count"], bins["accuracy"])):
        if n:
            low, high = b / count, (b + 1) / count
            words = f"confidence {_percent(low)} to {_percent(high)}: {_percent(accuracy)} of {n:,} right"
            tall = max(float(y(0.0) - y(accuracy)), NEVER)
            parts.append(_bar(float(x(low)) + 1, y.begin - tall, side / count - 2, tall, colour, words))
    parts.append(line(x.begin, y.begin, x.end, y.end, "base"))
    parts.append(x_axis(x, TOP + side, TOP, "confidence (bars: share that is right)", _percent, 5))
    words = f"right by how sure, {total:,} test samples, expected calibration error {measured['ece']:.1%}"
    return svg(width, TOP + side + BOTTOM, f"Share of predictions that are {words}", parts)


def _bar(x: float, y: float, wide: float, tall: float, colour: str, words: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall:.1f}"'
    return f'<rect class="{colour} fill" {place}>{tooltip(words)}</rect>'


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
