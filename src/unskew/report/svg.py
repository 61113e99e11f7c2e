"""What the report's pictures are drawn with: scales, ticks, text, and labels that keep out of each other's way.

Colours are classes, not values: `m0` to `m7` are methods and `ref` the references, and the page's style sheet gives
each a shade for light and for dark paper. Everything that comes from outside passes through `text` or `tip`.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

WIDE, NARROW = 940, 380
"""Every picture is drawn twice, for a desk and for a telephone, so that its letters are never scaled away."""
HUES = 8
Values = np.ndarray | float


def colours(methods: Sequence[str], references: Sequence[str]) -> dict[str, str]:
    """The class of each method's colour, the same in every picture; references are grey."""
    own = itertools.count()
    return {m: "ref" if m in references else f"m{next(own) % HUES}" for m in methods}


@dataclass(frozen=True)
class Scale:
    """From values in [low, high] to places in [begin, end], straight or logarithmic. least: the smallest step of ticks."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False
    least: float = 0.0

    def __call__(self, value: Any) -> Any:
        v, low, high = (self._bent(x) for x in (value, self.low, self.high))
        return self.begin + (v - low) / ((high - low) or 1.0) * (self.end - self.begin)

    def _bent(self, value: Any) -> Any:
        return np.log10(np.maximum(value, 1e-12)) if self.log else np.asarray(value, dtype=float)

    def ticks(self, most: int = 6) -> list[float]:
        return log_ticks(self.low, self.high, most) if self.log else ticks(self.low, self.high, most, self.least)


def step_of(span: float, most: int = 6) -> float:
    """The smallest of 1, 2, 5 times a power of ten that cuts a span into at most so many pieces."""
    raw = span / most
    power = 10.0 ** math.floor(math.log10(raw)) if raw > 0 else 1.0
    return next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))


def ticks(low: float, high: float, most: int = 6, least: float = 0.0) -> list[float]:
    step = max(step_of(high - low, most), least)
    return [float(v) for v in np.arange(math.ceil(low / step - 1e-9) * step, high + step * 1e-6, step)]


def least_step(values: np.ndarray) -> float:
    """1 between whole numbers, like rounds, of which there is none between two; else 0."""
    return float(bool((values == values.round()).all()))


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers: as many of 1, 2, 5 per decade as there is room for, and always two or more."""
    for steps in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        found = [m * 10.0**e for e in decades for m in steps if low * 0.999 <= m * 10.0**e <= high * 1.001]
        if len(found) <= most:
            return found
    return found[:: math.ceil(len(found) / most)]


def percent_range(low: float, high: float) -> tuple[float, float, float]:
    """(low, high, step) of an axis of accuracies: round ends, within [0, 1], never narrower than two points."""
    low, high = max(0.0, low), min(1.0, high)
    if high - low < 0.02:
        low, high = max(0.0, low - 0.01), min(1.0, high + 0.01)
    step = step_of(high - low, 6)
    return max(0.0, math.floor(low / step + 1e-9) * step), min(1.0, math.ceil(high / step - 1e-9) * step), step


def apart(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """The same places moved as little as needed to be `gap` apart and within [low, high]; the order is kept.

    Neighbours that are too close become a block, which sits at the mean of what its members want (pool adjacent
    violators). If there is no room for all, they are dealt out evenly.
    """
    if not places:
        return []
    order = np.argsort(places, kind="stable")
    wanted = np.array(places, dtype=float)[order]
    room = (high - low) / max(1, len(wanted) - 1)
    gap = min(gap, room)
    blocks: list[list[float]] = []  # [mean of (wanted - offset), members]
    for i, v in enumerate(wanted):
        blocks.append([v - i * gap, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            mean, n = blocks.pop()
            before, m = blocks[-1]
            blocks[-1] = [(before * m + mean * n) / (m + n), m + n]
    flat = np.concatenate([np.full(int(n), mean) for mean, n in blocks])
    flat = np.clip(flat, low, high - (len(wanted) - 1) * gap) + np.arange(len(wanted)) * gap
    found = np.empty(len(wanted))
    found[order] = flat
    return found.tolist()


def shorten(words: str, most: int) -> str:
    return words if len(words) <= most else words[: max(1, most - 1)] + "…"


def text(x: float, y: float, words: str, kind: str = "tick", at: str = "", more: str = "") -> str:
    anchor = f' text-anchor="{at}"' if at else ""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}"{anchor}{more}>{escape(words)}</text>'


def tip(words: str) -> str:
    """What a pointer resting on a shape is told, with or without scripts."""
    return f"<title>{escape(words)}</title>"


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<path class="{kind}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def rects(boxes: Sequence[tuple[float, float, float, float]], kind: str) -> str:
    """Many boxes (x, y, width, height) as one shape: ten bytes a box instead of a hundred."""
    if not boxes:
        return ""
    d = "".join(f"M{x:.4g} {y:.4g}h{w:.4g}v{h:.4g}h-{w:.4g}z" for x, y, w, h in boxes)
    return f'<path class="{kind}" d="{d}"/>'


def points(x: Sequence[float], y: Sequence[float]) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y))


def x_axis(scale: Scale, y: float, top: float, label: str, write: Callable[[float], str], most: int = 6) -> str:
    """The base line, ticks with grid lines up to `top`, and the label under them."""
    parts = [line(scale.begin, y, scale.end, y, "base")]
    for v in scale.ticks(most):
        x = float(scale(v))
        parts += [line(x, top, x, y, "grid"), text(x, y + 17, write(v), at="middle")]
    return "".join([*parts, text((scale.begin + scale.end) / 2, y + 38, label, "axis", "middle")])


def plain_number(v: float) -> str:
    return f"{v:,.0f}" if v >= 1000 else f"{v:g}"


def data(name: str, value: Any) -> str:
    """An attribute that the page's script reads; short numbers, escaped."""
    words = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return f" data-{name}='{escape(words, quote=False).replace(chr(39), '&#39;')}'"


def svg(width: float, height: float, label: str, parts: Sequence[str], attributes: str = "") -> str:
    size = "narrow" if width == NARROW else "wide"
    return (
        f'<svg class="{size}" viewBox="0 0 {width:g} {height:.0f}" role="img" aria-label="{escape(label)}"'
        f"{attributes}>{''.join(parts)}</svg>"
    )
