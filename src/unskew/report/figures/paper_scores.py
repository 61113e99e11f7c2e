"""Published scores and ours: a ring for the paper, a dot with deviation for ours, and a line between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from unskew.report.figures.svg import (
    NARROW,
    WIDE,
    Scale,
    line,
    plain_number,
    shorten,
    svg,
    text,
    tooltip,
    x_axis,
)
from unskew.scores import significant

STEP = 24.0
"""Height of a method's row."""


@dataclass(frozen=True)
class Pair:
    """The scores of a method in a row of a table.

    paper: NaN without a published score. std: of ours over seeds. colour: CSS classes. equal: whether both
    have equally many rounds; otherwise the ring is grey and there is no line.
    """

    name: str
    colour: str
    paper: float
    ours: float
    std: float
    equal: bool = True

    @property
    def deviation(self) -> float:
        """The deviation of our score; 0 if it is unknown."""
        return 0.0 if math.isnan(self.std) else self.std


def paper_scores(pairs: Sequence[Pair], label: str, *, width: int = WIDE) -> str:
    """SVG text with a row per method; "" without scores of ours. label: of the axis, with its unit."""
    pairs = [p for p in pairs if not math.isnan(p.ours)]
    if not pairs:
        return ""
    values = [
        v for p in pairs for v in (p.paper, p.ours - p.deviation, p.ours + p.deviation) if not math.isnan(v)
    ]
    low, high = min(values), max(values)
    pad = 0.06 * ((high - low) or abs(high) or 1.0)
    narrow = width == NARROW
    left, right, top = (104, 44, 6) if narrow else (190, 60, 6)
    bottom = top + STEP * len(pairs) + 6
    x = Scale(low - pad, high + pad, left, width - right)
    parts = [x_axis(x, bottom, top, label, lambda v: plain_number(round(v, 9)), 4 if narrow else 8)]
    for i, p in enumerate(pairs):
        parts += _row(p, x, top + (i + 0.5) * STEP, left, 12 if narrow else 24)
    words = "; ".join(
        f"{p.name} {significant(p.ours, 3)}" + (f", paper {significant(p.paper, 4)}" * (p.paper == p.paper))
        for p in pairs
    )
    return svg(width, bottom + 46, f"{label}: {words}", parts)


def _row(p: Pair, x: Scale, y: float, left: float, letters: int) -> list[str]:
    ours = float(x(p.ours))
    parts = [text(left - 12, y + 4, shorten(p.name, letters), "label", "end")]
    if not math.isnan(p.paper):
        paper = float(x(p.paper))
        title = tooltip(f"{p.name}: {significant(p.paper, 4)} in the paper")
        if p.equal:
            parts.append(f'<path class="leader {p.colour}" d="M{ours:.1f} {y:.1f}H{paper:.1f}"/>')
        parts.append(
            f'<circle class="ring{"" if p.equal else " grey"}" cx="{paper:.1f}" cy="{y:.1f}"'
            f' r="5">{title}</circle>'
        )
    if p.deviation:
        parts.append(line(float(x(p.ours - p.std)), y, float(x(p.ours + p.std)), y, f"mean {p.colour}"))
    title = tooltip(
        f"{p.name}: {significant(p.ours, 3)} here" + (f" ± {significant(p.std, 2)}" if p.deviation else "")
    )
    parts.append(f'<circle class="stop {p.colour}" cx="{ours:.1f}" cy="{y:.1f}" r="4.5">{title}</circle>')
    return parts
