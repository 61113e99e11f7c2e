"""The report's pictures, as SVG text: one palette, direct labels, units, and nothing loaded from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

PALETTE = ("#2f6fde", "#e4572e", "#1a9e77", "#9b5de5", "#d63384", "#a87900", "#0c8ea5", "#5c7cfa")
MUTED = "#8a8f98"
WIDTH = 860


@dataclass(frozen=True)
class Line:
    """A curve with a band: x, mean and standard deviation over seeds."""

    name: str
    colour: str
    x: np.ndarray
    y: np.ndarray
    band: np.ndarray
    dashed: bool = False


def colours(methods: Sequence[str], references: Sequence[str]) -> dict[str, str]:
    """One colour per method, the same in every picture; references are grey."""
    own = [m for m in methods if m not in references]
    return {m: PALETTE[own.index(m) % len(PALETTE)] if m in own else MUTED for m in methods}


def curves(lines: Sequence[Line], x_label: str, y_label: str, log_x: bool = False, height: int = 360, unit: Callable[[float], str] | None = None) -> str:
    """Lines with bands, named at their ends; labels are moved apart where ends meet."""
    lines = [line for line in lines if len(line.x)]
    if not lines:
        return ""
    left, right, top, bottom = 52, 168, 12, 44
    scale = (lambda v: np.log10(np.maximum(v, 1e-9))) if log_x else (lambda v: np.asarray(v, dtype=float))
    xs = np.concatenate([scale(line.x) for line in lines])
    x0, x1 = float(xs.min()), float(xs.max()) if xs.max() > xs.min() else float(xs.min()) + 1
    low = min(float((line.y - line.band).min()) for line in lines)
    high = max(float((line.y + line.band).max()) for line in lines)
    y0, y1 = max(0.0, math.floor(low * 10) / 10), min(1.0, math.ceil(high * 10) / 10)
    y1 = y1 if y1 > y0 else y0 + 0.1
    px = lambda v: left + (scale(v) - x0) / (x1 - x0) * (WIDTH - left - right)  # noqa: E731
    py = lambda v: top + (y1 - np.asarray(v)) / (y1 - y0) * (height - top - bottom)  # noqa: E731
    parts = [_axes(left, right, top, bottom, height, x_label, y_label)]
    step = 0.1 if y1 - y0 <= 0.6 else 0.2
    for v in np.arange(round(y0 / step) * step, y1 + 1e-9, step):
        y = float(py(v))
        parts.append(f'<line class="grid" x1="{left}" x2="{WIDTH - right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{100 * v:.0f}</text>')
    for v in _log_ticks(x0, x1) if log_x else _ticks(x0, x1):
        x = float(px(v))
        parts.append(f'<text class="tick" x="{x:.1f}" y="{height - bottom + 18}" text-anchor="middle">{unit(v) if unit else f"{v:g}"}</text>')
    for line in lines:
        upper = [f"{a:.1f},{b:.1f}" for a, b in zip(px(line.x), py(np.clip(line.y + line.band, y0, y1)))]
        lower = [f"{a:.1f},{b:.1f}" for a, b in zip(px(line.x), py(np.clip(line.y - line.band, y0, y1)))]
        if float(line.band.max()) > 0:
            parts.append(f'<polygon points="{" ".join(upper + lower[::-1])}" fill="{line.colour}" opacity=".13"/>')
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(px(line.x), py(line.y)))
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        title = f"<title>{escape(line.name)}: {100 * line.y[-1]:.1f} % at the end</title>"
        parts.append(f'<polyline class="curve" points="{points}" stroke="{line.colour}"{dash}>{title}</polyline>')
    ends = apart([float(py(line.y[-1])) for line in lines], 16, top + 6, height - bottom)
    for line, y in zip(lines, ends):
        x, own = float(px(line.x[-1])), float(py(line.y[-1]))
        parts.append(f'<path d="M{x:.1f} {own:.1f} L{WIDTH - right + 12} {y:.1f}" stroke="{line.colour}" fill="none" opacity=".45"/>')
        parts.append(
            f'<text class="end" x="{WIDTH - right + 16}" y="{y + 4:.1f}" fill="{line.colour}">{escape(shorten(line.name, 17))}'
            f' <tspan class="value">{100 * line.y[-1]:.1f}</tspan></text>'
        )
    return _svg(height, f"{y_label} against {x_label}: " + ", ".join(f"{line.name} {100 * line.y[-1]:.1f} %" for line in lines), parts)


def spread(methods: Sequence[tuple[str, str, Sequence[float]]], x_label: str) -> str:
    """Each client's accuracy as a dot, a row per method; the worst is named, the mean is a bar."""
    methods = [m for m in methods if len(m[2])]
    if not methods:
        return ""
    row, left, right, top, bottom = 44, 168, 24, 8, 44
    height = top + bottom + row * len(methods)
    px = lambda v: left + v * (WIDTH - left - right)  # noqa: E731
    parts = [_axes(left, right, top, bottom, height, x_label, "")]
    for v in (0, 0.2, 0.4, 0.6, 0.8, 1.0):
        parts.append(f'<line class="grid" y1="{top}" y2="{height - bottom}" x1="{px(v):.1f}" x2="{px(v):.1f}"/>')
        parts.append(f'<text class="tick" x="{px(v):.1f}" y="{height - bottom + 18}" text-anchor="middle">{100 * v:.0f}</text>')
    for i, (name, colour, values) in enumerate(methods):
        y = top + row * (i + 0.5)
        ordered = sorted(values)
        parts.append(f'<text class="label" x="{left - 12}" y="{y + 4:.1f}" text-anchor="end">{escape(shorten(name, 22))}</text>')
        for j, v in enumerate(ordered):
            offset = ((j * 7) % 5 - 2) * 4.2
            parts.append(f'<circle cx="{px(v):.1f}" cy="{y + offset:.1f}" r="3.2" fill="{colour}" opacity=".5"/>')
        worst, mean = ordered[0], float(np.mean(ordered))
        parts.append(f'<circle cx="{px(worst):.1f}" cy="{y - 8.4:.1f}" r="4.5" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        parts.append(f'<line x1="{px(mean):.1f}" x2="{px(mean):.1f}" y1="{y - 14:.1f}" y2="{y + 14:.1f}" stroke="{colour}" stroke-width="3"/>')
    told = ", ".join(f"{n}: worst {100 * min(v):.0f} %, mean {100 * float(np.mean(v)):.0f} %" for n, _, v in methods)
    return _svg(height, f"Accuracy of each client. {told}", parts)


def partition_map(federation: dict[str, Any]) -> str:
    """Clients across, classes down; the darker a cell, the more samples of that class the client holds."""
    labels = np.array(federation["labels"][:200], dtype=float)
    if not labels.size or labels.shape[1] > 60:
        return ""
    K, C = labels.shape
    names = federation["classes"]
    left, top, bottom = 118, 6, 62
    cell_w = (WIDTH - left - 12) / K
    cell_h = min(22.0, max(8.0, 240 / C))
    height = int(top + bottom + cell_h * C + 34)
    most = labels.max() or 1
    gap = 1.0 if cell_w > 5 else 0.2
    parts = []
    for c in range(C):
        y = top + c * cell_h
        parts.append(f'<text class="tick" x="{left - 8}" y="{y + cell_h / 2 + 4:.1f}" text-anchor="end">{escape(shorten(str(names[c]), 16))}</text>')
        for k in np.flatnonzero(labels[:, c]):
            shade = 0.12 + 0.88 * math.sqrt(labels[k, c] / most)
            title = f"<title>{escape(str(federation['names'][k]))}: {int(labels[k, c])} of {escape(str(names[c]))}</title>"
            parts.append(
                f'<rect x="{left + k * cell_w:.2f}" y="{y:.1f}" width="{max(cell_w - gap, 0.6):.2f}" height="{cell_h - gap:.1f}" '
                f'fill="{PALETTE[0]}" opacity="{shade:.2f}">{title}</rect>'
            )
    base = top + C * cell_h + 6
    sizes = labels.sum(1)
    for k in range(K):
        h = 34 * sizes[k] / max(sizes.max(), 1)
        parts.append(f'<rect class="bar" x="{left + k * cell_w:.2f}" y="{base + 34 - h:.1f}" width="{max(cell_w - gap, 0.6):.2f}" height="{h:.1f}"/>')
    parts.append(f'<text class="tick" x="{left - 8}" y="{base + 14:.1f}" text-anchor="end">samples</text>')
    parts.append(f'<text class="tick" x="{left - 8}" y="{base + 28:.1f}" text-anchor="end">max {int(sizes.max()):,}</text>')
    if K <= 30 and max(len(str(n)) for n in federation["names"][:K]) * 6.5 < cell_w:
        for k in range(K):
            parts.append(f'<text class="tick" x="{left + (k + 0.5) * cell_w:.1f}" y="{base + 52:.1f}" text-anchor="middle">{escape(str(federation["names"][k]))}</text>')
    else:
        shown = f"{K} clients" if K == federation["clients"] else f"first {K} of {federation['clients']:,} clients"
        parts.append(f'<text class="axis" x="{left + (WIDTH - left) / 2:.1f}" y="{base + 54:.1f}" text-anchor="middle">{shown}</text>')
    return _svg(height, f"Samples of each class at each client; {K} clients, {C} classes", parts)


def attendance(rows: Sequence[tuple[int, int, int]]) -> str:
    """Per round, how many of those asked answered."""
    if not rows or all(a == b for _, a, b in rows):
        return ""
    left, top, tall = 52, 8, 56
    width = (WIDTH - left - 12) / len(rows)
    most = max(a for _, a, _ in rows) or 1
    parts = []
    for i, (t, asked, answered) in enumerate(rows):
        for value, kind in ((asked, "asked"), (answered, "answered")):
            h = tall * value / most
            title = f"<title>round {t}: {answered} of {asked} answered</title>"
            parts.append(f'<rect class="{kind}" x="{left + i * width:.2f}" y="{top + tall - h:.1f}" width="{max(width - 0.6, 0.5):.2f}" height="{h:.1f}">{title}</rect>')
    parts.append(f'<text class="tick" x="{left - 8}" y="{top + 9}" text-anchor="end">{most}</text>')
    parts.append(f'<text class="tick" x="{left - 8}" y="{top + tall}" text-anchor="end">0</text>')
    parts.append(f'<text class="axis" x="{left + (WIDTH - left) / 2:.0f}" y="{top + tall + 20}" text-anchor="middle">round 1 to {rows[-1][0]}: clients asked (pale) and answered</text>')
    mean = np.mean([b for _, _, b in rows])
    return _svg(top + tall + 28, f"On average {mean:.1f} of {most} clients answered a round", parts)


def histograms(panels: Sequence[tuple[str, np.ndarray]], classes: Sequence[str]) -> str:
    """Small bar charts of class shares, side by side (as FLea's Figure 7)."""
    columns, tall, gap, top = 4, 74, 24, 20
    width = (WIDTH - gap * (columns - 1)) / columns
    lines = math.ceil(len(panels) / columns)
    parts = []
    for i, (title, share) in enumerate(panels):
        x, y = (i % columns) * (width + gap), top + (i // columns) * (tall + 44)
        parts.append(f'<text class="label" x="{x:.1f}" y="{y - 6}">{escape(title)}</text>')
        bar = width / len(share)
        most = max(float(share.max()), 1e-9)
        for c, s in enumerate(share):
            h = tall * float(s) / most
            tip = f"<title>{escape(str(classes[c]))}: {100 * float(s):.0f} %</title>"
            parts.append(f'<rect x="{x + c * bar:.1f}" y="{y + tall - h:.1f}" width="{bar - 1:.1f}" height="{h:.1f}" fill="{PALETTE[min(i, 2)]}" opacity=".8">{tip}</rect>')
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x + width:.1f}" y1="{y + tall}" y2="{y + tall}"/>')
    parts.append(f'<text class="axis" x="0" y="{top + lines * (tall + 44) - 22}">class 0 to {len(classes) - 1}; height: share of samples, each panel to its own scale</text>')
    return _svg(top + lines * (tall + 44) - 12, "Class shares", parts)


def apart(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """The same places moved as little as needed to be `gap` apart, within [low, high]."""
    order = np.argsort(places, kind="stable")
    found = np.array(places, dtype=float)
    for before, after in zip(order, order[1:]):
        found[after] = max(found[after], found[before] + gap)
    if len(found) and found[order[-1]] > high:
        found[order[-1]] = high
        for after, before in zip(order[::-1], order[::-1][1:]):
            found[before] = min(found[before], found[after] - gap)
    return [max(low, float(v)) for v in found] if len(found) * gap <= high - low else found.tolist()


def shorten(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def size(value: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def _axes(left: int, right: int, top: int, bottom: int, height: int, x_label: str, y_label: str) -> str:
    middle = left + (WIDTH - left - right) / 2
    across = f'<text class="axis" x="{middle:.0f}" y="{height - 6}" text-anchor="middle">{escape(x_label)}</text>'
    y = top + (height - top - bottom) / 2
    up = f'<text class="axis" transform="translate(13 {y:.0f}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>' if y_label else ""
    return f'<line class="base" x1="{left}" x2="{WIDTH - right}" y1="{height - bottom}" y2="{height - bottom}"/>{across}{up}'


def _ticks(low: float, high: float) -> list[float]:
    raw = (high - low) / 6
    power = 10 ** math.floor(math.log10(raw)) if raw > 0 else 1
    step = max(1, next(m * power for m in (1, 2, 5, 10) if m * power >= raw))
    return [float(v) for v in np.arange(math.ceil(low / step) * step, high + 1e-9, step)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten inside, and 2 and 5 between them where there are few."""
    steps = (1,) if high - low > 3 else (1, 2, 5) if high - low < 1.5 else (1, 3)
    return [m * 10.0**e for e in range(math.floor(low), math.ceil(high) + 1) for m in steps if low - 1e-9 <= e + math.log10(m) <= high + 1e-9]


def _svg(height: float, label: str, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
