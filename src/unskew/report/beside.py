"""The paper's numbers beside ours: a ring for the paper, a dot with its deviation for ours, a line between the two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from unskew.report.svg import NARROW, WIDE, Scale, line, plain_number, shorten, svg, text, tip, x_axis

STEP = 24.0


@dataclass(frozen=True)
class Pair:
    """One method's scores in a row. paper: NaN where it gives none. colour: a class, like `m0`."""

    name: str
    colour: str
    paper: float
    ours: float
    std: float


def beside(pairs: Sequence[Pair], label: str, *, width: int = WIDE) -> str:
    """A line a method; "" without ours. All values are in the unit that `label` tells."""
    pairs = [p for p in pairs if not math.isnan(p.ours)]
    if not pairs:
        return ""
    known = [v for p in pairs for v in (p.paper, p.ours - _std(p), p.ours + _std(p)) if not math.isnan(v)]
    low, high = min(known), max(known)
    pad = 0.06 * ((high - low) or abs(high) or 1.0)
    narrow = width == NARROW
    left, right, top = (104, 44, 6) if narrow else (190, 60, 6)
    bottom = top + STEP * len(pairs) + 6
    x = Scale(low - pad, high + pad, left, width - right)
    parts = [x_axis(x, bottom, top, label, lambda v: plain_number(round(v, 9)), 4 if narrow else 8)]
    for i, p in enumerate(pairs):
        parts += _line(p, x, top + (i + 0.5) * STEP, left, 12 if narrow else 24)
    told = "; ".join(f"{p.name} {p.ours:.3g}" + (f", paper {p.paper:.4g}" * (p.paper == p.paper)) for p in pairs)
    return svg(width, bottom + 46, f"{label}: {told}", parts)


def _std(p: Pair) -> float:
    return 0.0 if math.isnan(p.std) else p.std


def _line(p: Pair, x: Scale, y: float, left: float, letters: int) -> list[str]:
    at = float(x(p.ours))
    parts = [text(left - 12, y + 4, shorten(p.name, letters), "label", "end")]
    if not math.isnan(p.paper):
        to = float(x(p.paper))
        told = tip(f"{p.name}: the paper's {p.paper:.4g}")
        parts.append(f'<path class="leader {p.colour}" d="M{at:.1f} {y:.1f}H{to:.1f}"/>')
        parts.append(f'<circle class="ring" cx="{to:.1f}" cy="{y:.1f}" r="5">{told}</circle>')
    if _std(p):
        parts.append(line(float(x(p.ours - p.std)), y, float(x(p.ours + p.std)), y, f"mean {p.colour}"))
    told = tip(f"{p.name}: {p.ours:.3g} here" + (f" ± {p.std:.2g}" if _std(p) else ""))
    parts.append(f'<circle class="stop {p.colour}" cx="{at:.1f}" cy="{y:.1f}" r="4.5">{told}</circle>')
    return parts
