"""The report's pictures of clients, as SVG text: who holds what, who answered, who is served how well, at what cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from unskew.report.numbers import plural, size, whole
from unskew.report.svg import (
    NARROW,
    WIDE,
    Scale,
    data,
    line,
    rects,
    shorten,
    step_of,
    svg,
    text,
    tip,
    x_axis,
)

SHADES = 8
MOST_CLIENTS = 200


@dataclass(frozen=True)
class Strip:
    """One method's clients: names and scores in [0, 1], all seeds together."""

    name: str
    colour: str
    clients: Sequence[str]
    values: Sequence[float]


def spread(strips: Sequence[Strip], x_label: str, *, width: int = WIDE) -> str:
    """A row of dots per method, a dot per client; the bar is the mean, the ring the worst client, named."""
    strips = [s for s in strips if len(s.values)]
    if not strips:
        return ""
    narrow = width == NARROW
    left, row, top, bottom = (12, 76, 4, 56) if narrow else (150, 64, 6, 58)
    height = top + bottom + row * len(strips)
    low = min(min(s.values) for s in strips)
    x = Scale(0.0 if low < 0.5 else math.floor(low * 10 - 0.5) / 10, 1.0, left + 8, width - 18)
    parts = [x_axis(x, height - bottom + 8, top, x_label, lambda v: f"{100 * v:.0f}", 5 if narrow else 10)]
    rows, names = [], list(dict.fromkeys(n for s in strips for n in s.clients))
    for i, s in enumerate(strips):
        middle = top + row * (i + 0.5) + (10 if narrow else 4)
        parts.append(_label(s, left, middle, row, narrow))
        places = _swarm([float(v) for v in np.atleast_1d(x(np.array(s.values)))], row * 0.21)
        parts.append(_dots(s, places, middle))
        parts.append(_mean_and_worst(s, x, middle, row, width))
        rows.append({"n": s.name, "c": s.colour, "y": round(middle, 1), "d": _told(s, places, names)})
    told = "; ".join(
        f"{s.name}: mean {100 * np.mean(s.values):.1f} %, worst {100 * min(s.values):.1f} %" for s in strips
    )
    script = data("dots", {"h": row, "k": names, "r": rows}) if not narrow or len(names) <= 200 else ""
    return svg(width, height, f"Every client. {told}", parts, script)


def _label(s: Strip, left: float, middle: float, row: float, narrow: bool) -> str:
    n = plural(len(s.values), "dot")
    if narrow:
        return text(left, middle - row * 0.36, shorten(s.name, 30), "label")
    return text(left - 14, middle, shorten(s.name, 16), "label", "end") + text(left - 14, middle + 15, n, "tick", "end")


def _swarm(x: Sequence[float], half: float) -> list[tuple[float, float]]:
    """(x, dy): dots that would overlap are stacked around the row's middle; a tall stack is pressed together."""
    columns: dict[int, list[int]] = {}
    for i in np.argsort(x, kind="stable").tolist():
        columns.setdefault(round(x[i] / 5.0), []).append(i)
    found = [(0.0, 0.0)] * len(x)
    for members in columns.values():
        gap = min(5.4, 2 * half / max(1, len(members) - 1))
        for j, i in enumerate(members):
            found[i] = (x[i], (j // 2 + j % 2) * (1 if j % 2 else -1) * gap)
    return found


def _dots(s: Strip, places: Sequence[tuple[float, float]], middle: float) -> str:
    d = "".join(f"M{x:.1f} {middle + dy:.1f}h0" for x, dy in places)
    many = " many" if len(places) > 300 else ""
    return f'<path class="dots{many} {s.colour}" d="{d}"/>'


def _mean_and_worst(s: Strip, x: Scale, middle: float, row: float, width: float) -> str:
    mean, low = float(np.mean(s.values)), int(np.argmin(s.values))
    worst = s.values[low]
    at, bar = float(x(worst)), float(x(mean))
    equal = sum(v <= worst + 1e-9 for v in s.values)
    named = s.clients[low] if equal == 1 else plural(equal, "client")
    words = f"worst {100 * worst:.0f} %: {shorten(named, 22)}"
    under = middle + row * 0.43
    right = at + 6.2 * len(words) > width
    return "".join(
        [
            line(bar, middle - row * 0.32, bar, middle + row * 0.32, f"mean {s.colour}"),
            f'<circle class="ring {s.colour}" cx="{at:.1f}" cy="{middle:.1f}" r="6"/>',
            text(at + (6 if right else -6), under, words, "note", "end" if right else ""),
            text(bar + 5, middle - row * 0.3, f"{100 * mean:.1f}", "value"),
        ]
    )


def _told(s: Strip, places: Sequence[tuple[float, float]], names: Sequence[str]) -> list[list[float]]:
    """Per dot for the tooltip: x, dy, which name, accuracy in percent."""
    at = {n: i for i, n in enumerate(names)}
    dots = zip(places, s.clients, s.values)
    return [[round(x, 1), round(dy, 1), at[name], round(100 * v, 1)] for (x, dy), name, v in dots]


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


def partition_map(federation: dict[str, Any], *, width: int = WIDE) -> str:
    """Clients across, classes down; the darker a cell, the more samples. Below, how many each client has.

    Where every pixel has a label, a cell is the share of the client's pixels, in percent. Shows the first 200 clients;
    "" where the federation names no labels.
    """
    counts = np.array(federation.get("labels", [])[:MOST_CLIENTS], dtype=float)
    if counts.ndim != 2 or not counts.size:
        return ""
    K, C = counts.shape
    pixels = federation.get("unit") == "pixels"
    sizes = np.array(federation["sizes"]["train"][:K], dtype=float) if pixels else counts.sum(1)
    if pixels:
        counts = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    names, classes = [str(n) for n in federation["names"][:K]], [str(c) for c in federation["classes"]]
    narrow = width == NARROW
    letters = 11 if narrow else 18
    left = max(64.0, 14 + 6.4 * min(letters, max(map(len, classes))))
    cell_w = min(46.0 if K > 8 else 84.0, (width - left - 8) / K)  # a few sites have room for their names
    cell_h = min(24.0, max(5.0, 300 / C))
    base = 24 + cell_h * C
    parts = [
        _shade_legend(left, f"1 to {int(counts.max()):,} samples of a class" if not pixels else "share of pixels, %")
    ]
    parts += _cells(counts, left, 24, cell_w, cell_h, decimals=int(pixels))
    parts += _class_names(classes, left, 24, cell_h, letters)
    parts += _sizes(sizes, left, base + 8, cell_w)
    parts.append(_client_names(names, federation.get("clients", K), left, base + 58, cell_w))
    held = [
        f"{np.mean((counts > 0).sum(1)):.1f} of {C} classes per client",
        f"{sizes.min():.0f} to {sizes.max():.0f} samples",
    ]
    label = f"{'Pixels' if pixels else 'Samples'} of each class at each of {plural(K, 'client')}: {', '.join(held)}"
    grid = {
        "x": round(left, 1),
        "y": 24,
        "w": round(cell_w, 3),
        "h": round(cell_h, 3),
        "names": names,
        "classes": classes,
    }
    told = (
        {"v": counts.round(1).tolist(), "n": sizes.astype(int).tolist()}
        if pixels
        else {"v": counts.astype(int).tolist()}
    )
    return svg(width, base + 86, label, parts, data("grid", {**grid, **told}))


def _cells(counts: np.ndarray, left: float, top: float, w: float, h: float, decimals: int) -> list[str]:
    """One shape per shade; counts are written into cells large enough."""
    gap = 1.5 if min(w, h) > 7 else 0.5 if min(w, h) > 3 else 0.0
    level = np.ceil(SHADES * np.sqrt(counts / max(counts.max(), 1))).astype(int)
    K, C = counts.shape
    parts = [f'<rect class="empty" x="{left:.1f}" y="{top}" width="{K * w:.1f}" height="{C * h:.1f}"/>']
    for shade in range(1, SHADES + 1):
        boxes = [(left + k * w, top + c * h, w - gap, h - gap) for k, c in np.argwhere(level == shade)]
        parts.append(rects(boxes, f"q{shade}"))
    if w >= 27 and h >= 15:
        for k, c in np.argwhere(counts > 0):
            on = "on-dark" if level[k, c] > 4 else "on-light"
            x, y = left + (k + 0.5) * w - gap / 2, top + (c + 0.5) * h + 3.5
            parts.append(text(x, y, f"{counts[k, c]:.{decimals}f}", f"count {on}", "middle"))
    return parts


def _shade_legend(left: float, words: str) -> str:
    boxes = "".join(
        f'<rect class="q{i}" x="{left + 17 * (i - 1):.1f}" y="2" width="16" height="10"/>' for i in range(1, SHADES + 1)
    )
    return boxes + text(left + 17 * SHADES + 6, 11, words)


def _class_names(classes: Sequence[str], left: float, top: float, h: float, letters: int) -> list[str]:
    every = max(1, math.ceil(12 / h))
    return [
        text(left - 8, top + (c + 0.5) * h + 4, shorten(name, letters), at="end")
        for c, name in enumerate(classes)
        if c % every == 0
    ]


def _sizes(sizes: np.ndarray, left: float, top: float, w: float, tall: float = 36) -> list[str]:
    most = max(float(sizes.max()), 1.0)
    gap = 1.5 if w > 7 else 0.5 if w > 3 else 0.0
    bars = [(left + k * w, top + tall * (1 - s / most), w - gap, tall * s / most) for k, s in enumerate(sizes) if s]
    return [
        rects(bars, "bar"),
        text(left - 8, top + 11, whole(most), at="end"),
        text(left - 8, top + tall, "samples", at="end"),
    ]


def _client_names(names: Sequence[str], clients: int, left: float, y: float, w: float) -> str:
    K, longest = len(names), max(map(len, names))
    middle = left + K * w / 2
    short = [n.removeprefix("client-") for n in names]
    fits = 6.6 * max(map(len, short)) + 6
    shown = plural(K, "client") if clients == K else f"the first {K} of {clients:,} clients"
    if fits <= w:
        label = shown if short == names else f"client, 0 to {K - 1}"
        return "".join(text(left + (k + 0.5) * w, y, n, at="middle") for k, n in enumerate(short)) + text(
            middle, y + 22, label, "axis", "middle"
        )
    if short == names and w >= 13:
        turned = "".join(
            f'<text class="tick" text-anchor="end" transform="translate({left + (k + 0.5) * w + 4:.1f} {y - 4:.1f}) '
            f'rotate(-40)">{escape(shorten(n, 10))}</text>'
            for k, n in enumerate(names)
        )
        return turned if longest else ""
    step = max(1, int(step_of(K, max(2, int(K * w // 60)))))
    ticks = "".join(text(left + (k + 0.5) * w, y, str(k), at="middle") for k in range(0, K, step))
    return ticks + text(middle, y + 22, shown, "axis", "middle")


def attendance(rows: Sequence[tuple[int, Sequence[int], Sequence[int]]], clients: int, *, width: int = WIDE) -> str:
    """Who answered in which round: answered, asked but absent, not asked. Above 60 clients, counts per round alone."""
    if not rows or all(len(asked) == len(answered) == clients for _, asked, answered in rows):
        return ""
    left, top, tall, T = 66, 26, 64, len(rows)
    most = max(len(asked) for _, asked, _ in rows) or 1
    x = Scale(0, T, left, width - 8)
    w = (width - 8 - left) / T
    gap = 1.0 if w > 4 else 0.0
    asked, came = (np.array([len(r[i]) for r in rows]) for i in (1, 2))
    parts = [_attendance_legend(left)]
    for kind, low, high in (("absent", came, asked), ("answered", 0 * came, came)):
        tops, tails = top + tall * (1 - high / most), tall * (high - low) / most
        parts.append(rects([(float(x(i)), a, w - gap, h) for i, (a, h) in enumerate(zip(tops, tails)) if h], kind))
    parts += [text(left - 8, top + 9, f"{most} asked", at="end"), text(left - 8, top + tall, "0", at="end")]
    y = top + tall + 8
    if clients <= 60:
        parts.append(_grid(rows, clients, x, y, w))
        last = f"client {clients - 1}"
        parts += [text(left - 8, y + 9, "client 0", at="end"), text(left - 8, y + 7 * clients, last, at="end")]
        y += 7 * clients + 4
    step = max(1, math.ceil(step_of(T, 5 if width == NARROW else 10)))
    parts += [text(float(x(i)) + w / 2, y + 12, str(r[0]), at="middle") for i, r in enumerate(rows) if r[0] % step == 0]
    parts.append(text((left + width) / 2, y + 34, "round", "axis", "middle"))
    label = (
        f"On average {came.mean():.1f} of {plural(clients, 'client')} answered a round, {asked.mean():.1f} were asked"
    )
    return svg(width, y + 42, label, parts)


def _attendance_legend(left: float) -> str:
    parts, x = [], float(left)
    for kind, words in (("answered", "answered"), ("absent", "asked, did not answer")):
        parts.append(f'<rect class="{kind}" x="{x}" y="3" width="10" height="10" rx="2"/>{text(x + 15, 12, words)}')
        x += 28 + 6.6 * len(words)
    return "".join(parts)


def _grid(rows: Sequence[tuple[int, Sequence[int], Sequence[int]]], clients: int, x: Scale, y: float, w: float) -> str:
    """A cell per client and round; neighbouring rounds of one kind are one box."""
    state = np.zeros((clients, len(rows)), dtype=int)
    for i, (_, asked, answered) in enumerate(rows):
        state[[k for k in asked if k < clients], i] = 1
        state[[k for k in answered if k < clients], i] = 2
    found = []
    for value, kind in ((1, "absent"), (2, "answered")):
        boxes = []
        for k in range(clients):
            edges = np.flatnonzero(np.diff(np.concatenate([[0], state[k] == value, [0]])))
            boxes += [(float(x(a)), y + 7 * k, (b - a) * w - (0.6 if w > 3 else 0), 6) for a, b in edges.reshape(-1, 2)]
        found.append(rects(boxes, kind))
    return "".join(found)


def histograms(found: dict[str, Any], classes: Sequence[str], most: int = 3, *, width: int = WIDE) -> str:
    """Class shares of the shared buffer, of clients' own data, and of what training then sees (as FLea's figure 7)."""
    if not found.get("buffer"):
        return ""
    panels, names = [("buffer", found["buffer"], "q6")], dict(enumerate(found.get("names", [])))
    for kind, shade, words in (("local", "m1", "own data"), ("mixed", "m2", "mixed")):
        rows = enumerate(found.get(kind, [])[:most])
        panels += [(f"{names.get(k, f'client {k}')}: {words}", row, shade) for k, row in rows if sum(row)]
    columns, gap, tall = (2 if width == NARROW else 1 + most), 28, 70
    w = (width - gap * (columns - 1)) / columns
    places = [(0, 0)] + [(1 + i, 0) for i in range(most)] + [(1 + i, 1) for i in range(most)]
    if width == NARROW:
        places = [(0, 0)] + [(0, 1 + i) for i in range(most)] + [(1, 1 + i) for i in range(most)]
    if len(panels) != 1 + 2 * most:
        places = [(i % columns, i // columns) for i in range(len(panels))]
    parts = []
    for (title, values, shade), (column, r) in zip(panels, places):
        parts.append(_histogram(title, values, classes, (column * (w + gap), r * (tall + 58) + 20, w, tall), shade))
    down = 1 + max(r for _, r in places[: len(panels)])
    return svg(
        width, down * (tall + 58) - 18, "Class shares: the shared buffer, clients' own data, and the mixture", parts
    )


def _histogram(title: str, values: Sequence[float], classes: Sequence[str], box: tuple[float, ...], shade: str) -> str:
    x, y, w, tall = box
    share = np.array(values, dtype=float) / max(sum(values), 1e-12)
    bar, high = w / len(share), max(float(share.max()), 1e-12)
    parts = [text(x, y - 7, title, "label")]
    if w > 200:
        parts.append(text(x + w, y - 7, f"max {100 * high:.0f} %", at="end"))
    for c, s in enumerate(share.tolist()):
        h = tall * s / high
        told = tip(f"class {classes[c] if c < len(classes) else c}: {100 * s:.1f} %")
        parts.append(
            f'<rect class="fill {shade}" x="{x + c * bar:.1f}" y="{y + tall - h:.1f}" '
            f'width="{max(bar - 1.5, 0.5):.1f}" height="{h:.1f}">{told}</rect>'
        )
    every = max(1, math.ceil(22 / bar))
    parts.append(line(x, y + tall, x + w, y + tall, "base"))
    parts += [
        text(x + (c + 0.5) * bar, y + tall + 14, shorten(str(classes[c]), max(3, int(every * bar / 7))), at="middle")
        for c in range(0, len(share), every)
        if c < len(classes)
    ]
    return "".join(parts)
