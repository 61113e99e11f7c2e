"""The cost of a target: bytes until it is reached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unskew.report.analysis.numbers import noun, size, with_unit
from unskew.report.figures.svg import NARROW, WIDE, Scale, line, shorten, svg, text, x_axis


@dataclass(frozen=True)
class TargetCost:
    """The bytes of a method until a target, for each of its n seeds that reached it. colour: CSS classes."""

    name: str
    colour: str
    bytes: Sequence[float]
    n: int


def target_cost(
    rows: Sequence[TargetCost], target: float, metric: str = "accuracy", *, width: int = WIDE
) -> str:
    """A row per method, fewest bytes first: a dot per seed, a bar at their mean, and who never reached the
    target.

    "" if nobody reached it. target: a score; metric: which.
    """
    if not any(len(r.bytes) for r in rows):
        return ""
    narrow = width == NARROW
    left, right, row, top, bottom = (12, 16, 50, 4, 48) if narrow else (150, 150, 36, 6, 50)
    rows = sorted(rows, key=lambda r: float(np.mean(r.bytes)) if len(r.bytes) else math.inf)
    values = [b for r in rows for b in r.bytes if b > 0] or [1.0]
    x = Scale(min(values) / 1.6, max(values) * 1.6, left, width - right, log=True)
    height = top + bottom + row * len(rows)
    label = f"bytes of all clients, both ways, until {with_unit(target, metric)} global {noun(metric)}"
    short = f"bytes until {with_unit(target, metric)}"
    parts = [x_axis(x, height - bottom, top, short if narrow else label, size, 4 if narrow else 7)]
    for i, r in enumerate(rows):
        middle = top + row * (i + 0.5) + (8 if narrow else 0)
        parts.append(
            text(left, middle - 13, shorten(r.name, 30), "label")
            if narrow
            else text(left - 14, middle + 4, shorten(r.name, 16), "label", "end")
        )
        parts.append(_row(r, x, middle, width) if len(r.bytes) else text(left + 6, middle + 4, "not reached"))
    words = "; ".join(
        f"{r.name} {size(float(np.mean(r.bytes))) if len(r.bytes) else 'not reached'}" for r in rows
    )
    return svg(width, height, f"Bytes until {with_unit(target, metric)}. {words}", parts)


def _row(r: TargetCost, x: Scale, middle: float, width: int) -> str:
    mean = float(np.mean(r.bytes))
    places = [float(x(max(b, x.low))) for b in r.bytes]
    bar = float(x(max(mean, x.low)))
    words = size(mean) + (f"  ({len(r.bytes)} of {r.n} seeds)" if len(r.bytes) < r.n else "")
    after = max(places) + 10
    if width == NARROW and after + 6.4 * len(words) > width:
        label = text(width - 14, middle - 13, words, "value", "end")
    else:
        label = text(after, middle + 4, words, "value")
    dots = "".join(f"M{place:.1f} {middle:.1f}h0" for place in places)
    return "".join(
        [
            line(x.begin, middle, bar, middle, f"stem {r.colour}"),
            f'<path class="dots {r.colour}" d="{dots}"/>',
            line(bar, middle - 9, bar, middle + 9, f"mean {r.colour}"),
            label,
        ]
    )
