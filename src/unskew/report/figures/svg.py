"""Primitives of pictures: scales, ticks, shapes, text, lines, and labels that do not overlap.

Colours are classes, not values: `m0` to `m7` are methods, `ref` the references, and `q1` to `q8` shades of a
map; `d1` to `d4` are dash patterns. The page's style sheet gives each of them a value for light and for dark
pages. Every string that comes from outside passes through `text`, `tooltip` or `data_attribute`, which escape
it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import numpy as np

WIDTH = 940
"""The width of every picture; a small screen scrolls it, so that no text is scaled."""
HUES, DASHES = 8, 5
"""Number of colours, and of dash patterns including the solid line, that tell methods apart."""
SHADES = 8
"""Shades of a map's cells, from `q1`, the palest; `on1` to `on8` are the colours of text on them."""

_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def colours(methods: Sequence[str], references: Sequence[str]) -> dict[str, str]:
    """The CSS classes of each method: its colour and dash pattern, and `method-0`, `method-1`, ..., by which
    the script hides its shapes.

    All pictures of a page use them. References are grey and differ by their dash pattern.
    """
    competing = [m for m in methods if m not in references]
    classes = {m: f"m{i % HUES}{_dash(i // HUES)}" for i, m in enumerate(competing)}
    classes |= {m: f"ref{_dash(i)}" for i, m in enumerate(r for r in methods if r in references)}
    return {m: f"{kind} method-{i}" for i, (m, kind) in enumerate(classes.items())}


def _dash(i: int) -> str:
    return f" d{i % DASHES}" if i % DASHES else ""


@dataclass(frozen=True)
class Scale:
    """Maps values in [low, high] to coordinates in [begin, end], linearly or by their logarithm.

    least: the smallest distance between ticks.
    """

    low: float
    high: float
    begin: float
    end: float
    log: bool = False
    least: float = 0.0

    def __call__(self, value: Any) -> Any:
        """The coordinates of values; infinity lies at the end of the axis."""
        v = np.where(np.isinf(value), np.where(np.asarray(value) > 0, self.high, self.low), value)
        v, low, high = (
            np.log10(np.maximum(u, 1e-12)) if self.log else np.asarray(u, dtype=float)
            for u in (v, self.low, self.high)
        )
        return self.begin + (v - low) / ((high - low) or 1.0) * (self.end - self.begin)

    def ticks(self, most: int = 6) -> list[float]:
        """At most `most` round values for an axis."""
        if self.log:
            return log_ticks(self.low, self.high, most)
        return ticks(self.low, self.high, most, self.least)


def step_of(span: float, most: int = 6) -> float:
    """The smallest of 1, 2, 5 times a power of ten that divides a span into at most `most` pieces."""
    raw = span / most
    power = 10.0 ** math.floor(math.log10(raw)) if raw > 0 else 1.0
    return next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))


def ticks(low: float, high: float, most: int = 6, least: float = 0.0) -> list[float]:
    """Round values within [low, high], evenly spaced, at least `least` apart."""
    step = max(step_of(high - low, most), least)
    return [float(v) for v in np.arange(math.ceil(low / step - 1e-9) * step, high + step * 1e-6, step)]


def least_step(values: np.ndarray) -> float:
    """The least distance of ticks: 1 for whole numbers such as rounds, else 0."""
    return float(bool((values == values.round()).all()))


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round values within [low, high] for a logarithmic axis, as many per decade as fit in `most`."""
    for steps in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        values = [m * 10.0**e for e in decades for m in steps if low * 0.999 <= m * 10.0**e <= high * 1.001]
        if len(values) <= most:
            return values
    return values[:: math.ceil(len(values) / most)]


def ends_of(values: Iterable[float]) -> tuple[float, float]:
    """The smallest and the largest finite value; 0 and 1 without finite values."""
    finite = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
    return min(finite), max(finite)


def score_range(low: float, high: float, share: bool) -> tuple[float, float, float]:
    """(low, high, step) of an axis of scores with round ends.

    Shares stay within [0, 1], at least two points apart; other axes include 0 unless all values are far from
    it.
    """
    if share:
        low, high = max(0.0, low), min(1.0, high)
        if high - low < 0.02:
            low, high = max(0.0, low - 0.01), min(1.0, high + 0.01)
    else:
        low = 0.0 if 0 <= low < 0.6 * high else low
        high = high if high > low else low + (abs(low) or 1.0)
    step = step_of(high - low, 6)
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return (max(0.0, low), min(1.0, high), step) if share else (low, high, step)


def score_tick(value: float, step: float, share: bool) -> str:
    """The label of a tick on an axis of scores; shares are in percent."""
    if share:
        return f"{100 * value:.{1 if step < 0.01 else 0}f}"
    return plain_number(round(value, 9))


def separate_labels(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """The places, moved as little as possible to be `gap` apart and within [low, high]; their order is kept.

    Neighbours that are too close form a block at the mean of its members' places (pool adjacent violators).
    Without enough room all are spaced evenly.
    """
    if not places:
        return []
    order = np.argsort(places, kind="stable")
    rising = np.array(places, dtype=float)[order]
    gap = min(gap, (high - low) / max(1, len(rising) - 1))
    blocks: list[list[float]] = []  # [mean of (place - offset in the row), members]
    for i, place in enumerate(rising):
        blocks.append([place - i * gap, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            mean, n = blocks.pop()
            before, m = blocks[-1]
            blocks[-1] = [(before * m + mean * n) / (m + n), m + n]
    flat = np.concatenate([np.full(int(n), mean) for mean, n in blocks])
    flat = np.clip(flat, low, high - (len(rising) - 1) * gap) + np.arange(len(rising)) * gap
    moved = np.empty(len(rising))
    moved[order] = flat
    return moved.tolist()


def shorten(words: str, most: int) -> str:
    """The text in at most `most` characters, with an ellipsis if it was cut."""
    return words if len(words) <= most else words[: max(1, most - 1)] + "…"


def escape_xml(words: str, quote: bool = True) -> str:
    """The text escaped for XML; forbidden characters and direction marks become replacement characters,
    because names may come from strangers."""
    return escape(_UNSEEN.sub("\ufffd", words), quote)


def text(x: float, y: float, words: str, kind: str = "tick", anchor: str = "") -> str:
    """A line of text. kind: its class. anchor: "middle" or "end" if x is not its beginning."""
    anchored = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}"{anchored}>{escape_xml(words)}</text>'


def label_with_value(x: float, y: float, words: str, value: str, kind: str) -> str:
    """A line of text followed by a highlighted value."""
    return text(x, y, words, kind).replace(
        "</text>", f' <tspan class="value">{escape_xml(value)}</tspan></text>'
    )


def tooltip(words: str) -> str:
    """The tooltip of the enclosing shape; it needs no script."""
    return f"<title>{escape_xml(words)}</title>"


def label_stride(room: float, width: float) -> int:
    """The stride of written labels, each with `room` and of this width: 1 for all, 2 for every second, ..."""
    return max(1, math.ceil(width / room))


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line. kind: its CSS class."""
    return f'<path class="{kind}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def group(kind: str, parts: Iterable[str]) -> str:
    """Shapes and texts of one class, such as a method's row."""
    return f'<g class="{kind}">{"".join(parts)}</g>'


def dots(places: Iterable[tuple[float, float]], kind: str, seeds: Sequence[int] = ()) -> str:
    """Dots at (x, y), a shape for each seed. seeds: of each dot, by which the script hides it, or empty."""
    shapes: dict[str, str] = {}
    for i, (x, y) in enumerate(places):
        seed = f" seed-{seeds[i]}" if seeds else ""
        shapes[seed] = shapes.get(seed, "") + f"M{x:.1f} {y:.1f}h0"
    return "".join(f'<path class="dots{kind}{seed}" d="{d}"/>' for seed, d in shapes.items())


def rects(boxes: Sequence[tuple[float, float, float, float]], kind: str) -> str:
    """Boxes (x, y, width, height) as one shape, which takes a tenth of the bytes of single elements."""
    if not boxes:
        return ""
    d = "".join(f"M{x:.4g} {y:.4g}h{w:.4g}v{h:.4g}h-{w:.4g}z" for x, y, w, h in boxes)
    return f'<path class="{kind}" d="{d}"/>'


def x_axis(
    scale: Scale, y: float, top: float, label: str, write: Callable[[float], str], most: int = 6
) -> str:
    """The base line at y, at most `most` ticks with grid lines up to `top`, and the label below."""
    parts = [line(scale.begin, y, scale.end, y, "base")]
    for v in scale.ticks(most):
        x = float(scale(v))
        parts += [line(x, top, x, y, "grid"), text(x, y + 17, write(v), anchor="middle")]
    return "".join([*parts, text((scale.begin + scale.end) / 2, y + 38, label, "axis", "middle")])


def plain_number(v: float) -> str:
    """`0.25`, `7`, `1,000`."""
    return f"{v:,.0f}" if v >= 1000 else f"{v:g}"


def data_attribute(name: str, value: Any) -> str:
    """An attribute `data-<name>` for the page's script, as compact JSON."""
    words = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return f" data-{name}='{escape_xml(words, quote=False).replace(chr(39), '&#39;')}'"


def svg(height: float, label: str, parts: Sequence[str], attributes: str = "") -> str:
    """The picture. label: a description for screen readers. attributes: of the element, as text."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape_xml(label)}"{attributes}>'
        f"{''.join(parts)}</svg>"
    )


POINTS = 240
"""The most points of a drawn series; longer ones are thinned evenly and keep their last point."""


@dataclass(frozen=True)
class Line:
    """x, and the mean and standard deviation of a score over seeds, all [T]. colour: a class, such as `m0`.

    share: whether the score lies in [0, 1] and is drawn in percent, equal for all lines of a picture.
    """

    name: str
    colour: str
    x: np.ndarray
    y: np.ndarray
    band: np.ndarray
    dashed: bool = False
    share: bool = True

    def thinned(self) -> Line:
        """The line with at most POINTS points, without NaN."""
        keep = np.flatnonzero(~np.isnan(self.y))
        if len(keep) > POINTS:
            keep = keep[np.unique(np.linspace(0, len(keep) - 1, POINTS).round().astype(int))]
        spread = np.where(np.isfinite(self.band), self.band, 0.0)  # an infinite mean has no deviation
        return replace(self, x=self.x[keep], y=self.y[keep], band=spread[keep])


def mean_line(
    name: str, colour: str, series: Sequence[tuple[np.ndarray, np.ndarray]], dashed: bool = False
) -> Line | None:
    """Mean and sample deviation over seeds at their common rounds; None without common rounds.

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
