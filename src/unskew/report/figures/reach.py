"""What a target costs: bytes until it is reached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unskew.report.numbers import size
from unskew.report.svg import NARROW, WIDE, Scale, line, shorten, svg, text, x_axis


@dataclass(frozen=True)
class Reach:
    """Bytes until a target: one value per seed that reached it, out of n."""

    name: str
    colour: str
    bytes: Sequence[float]
    n: int


def reach(rows: Sequence[Reach], target: float, score: str = "accuracy", *, width: int = WIDE) -> str:
    """A row per method, fewest bytes first: a dot per seed, a bar at their mean, and who never got there."""
    if not any(len(r.bytes) for r in rows):
        return ""
    narrow = width == NARROW
    left, right, row, top, bottom = (12, 16, 50, 4, 48) if narrow else (150, 150, 36, 6, 50)
    rows = sorted(rows, key=lambda r: float(np.mean(r.bytes)) if len(r.bytes) else math.inf)
    ends = [b for r in rows for b in r.bytes if b > 0] or [1.0]
    x = Scale(min(ends) / 1.6, max(ends) * 1.6, left, width - right, log=True)
    height = top + bottom + row * len(rows)
    label = f"bytes of all clients, both ways, until {100 * target:.1f} % global {score}"
    parts = [
        x_axis(
            x,
            height - bottom,
            top,
            label if not narrow else f"bytes until {100 * target:.1f} %",
            size,
            4 if narrow else 7,
        )
    ]
    for i, r in enumerate(rows):
        middle = top + row * (i + 0.5) + (8 if narrow else 0)
        parts.append(
            text(left, middle - 13, shorten(r.name, 30), "label")
            if narrow
            else text(left - 14, middle + 4, shorten(r.name, 16), "label", "end")
        )
        parts.append(_reached(r, x, middle, left, width, narrow))
    told = "; ".join(f"{r.name} {size(float(np.mean(r.bytes))) if len(r.bytes) else 'not reached'}" for r in rows)
    return svg(width, height, f"Bytes until {100 * target:.1f} %. {told}", parts)


def _reached(r: Reach, x: Scale, middle: float, left: float, width: float, narrow: bool) -> str:
    if not len(r.bytes):
        return text(left + 6, middle + 4, "not reached", "tick")
    mean, count = float(np.mean(r.bytes)), f"  ({len(r.bytes)} of {r.n} seeds)" if len(r.bytes) < r.n else ""
    dots = "".join(f"M{float(x(max(b, x.low))):.1f} {middle:.1f}h0" for b in r.bytes)
    at = float(x(max(mean, x.low)))
    words = size(mean) + count
    edge = float(x(max(max(r.bytes), x.low))) + 10
    if narrow and edge + 6.4 * len(words) > width:
        label = text(width - 14, middle - 13, words, "value", "end")
    else:
        label = text(edge, middle + 4, words, "value")
    return "".join(
        [
            line(x.begin, middle, at, middle, f"stem {r.colour}"),
            f'<path class="dots {r.colour}" d="{dots}"/>',
            line(at, middle - 9, at, middle + 9, f"mean {r.colour}"),
            label,
        ]
    )
