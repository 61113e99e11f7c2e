"""The number of samples of each class at each client."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from unskew.report.analysis.numbers import plural, whole_number
from unskew.report.figures.svg import (
    NARROW,
    SHADES,
    WIDE,
    data_attribute,
    escape_xml,
    rects,
    shorten,
    step_of,
    svg,
    text,
)

MOST_CLIENTS = 200
TOP = 24


@dataclass(frozen=True)
class _Map:
    """counts: [K, C] samples, or where every pixel has a label, percent of a client's pixels. sizes: [K]
    samples (images), which with several labels a sample are others than the sums of counts.

    left: where the cells begin. w, h: a cell's width and height.
    """

    counts: np.ndarray
    sizes: np.ndarray
    names: list[str]
    classes: list[str]
    shares_of: str
    left: float
    w: float
    h: float


def partition_map(federation: dict[str, Any], *, width: int = WIDE) -> str:
    """Clients across, classes down; the stronger a cell's colour, the more samples. Below them, how many
    samples each client has.

    federation: as in federation.json. Where every pixel or token has a label, a cell is the share of the
    client's pixels in percent. Shows the first 200 clients; "" if the federation names no labels, or counts
    none.
    """
    letters = 11 if width == NARROW else 18
    m = _map(federation, width, letters)
    if m is None:
        return ""
    K, C = m.counts.shape
    base = TOP + m.h * C
    shades = (
        f"share of {m.shares_of}, %" if m.shares_of else f"1 to {int(m.counts.max()):,} samples of a class"
    )
    parts = [_legend(m.left, shades), *_cells(m), *_class_names(m, letters), *_sizes(m, base + 8)]
    parts.append(_client_names(m, federation.get("clients", K), base + 58))
    held = (
        f"{np.mean((m.counts > 0).sum(1)):.1f} of {C} classes per client, "
        f"{m.sizes.min():.0f} to {m.sizes.max():.0f} samples"
    )
    label = f"{m.shares_of.capitalize() or 'Samples'} of each class at each of {plural(K, 'client')}: {held}"
    return svg(width, base + 86, label, parts, _for_script(m))


def _map(federation: dict[str, Any], width: int, letters: int) -> _Map | None:
    counts = np.array(federation.get("labels", [])[:MOST_CLIENTS], dtype=float)
    if counts.ndim != 2 or not counts.any():
        return None
    K, C = counts.shape
    unit = str(federation.get("unit"))
    shares_of = unit if unit in ("pixels", "tokens") else ""
    train = federation.get("sizes", {}).get("train", [])[:K]
    sizes = np.array(train, dtype=float) if len(train) == K else counts.sum(1)
    if shares_of:
        counts = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    names, classes = [str(n) for n in federation["names"][:K]], [str(c) for c in federation["classes"]]
    left = max(64.0, 14 + 6.4 * min(letters, max(map(len, classes))))
    w = min(46.0 if K > 8 else 84.0, (width - left - 8) / K)  # a few sites have room for their names
    h = min(24.0, max(5.0, 300 / C))
    return _Map(counts, sizes, names, classes, shares_of, left, w, h)


def _for_script(m: _Map) -> str:
    """The data of the script's tooltip: place of the grid, names, and the value of each cell."""
    grid = {"x": round(m.left, 1), "y": TOP, "w": round(m.w, 3), "h": round(m.h, 3)}
    values = m.counts.round(1).tolist() if m.shares_of else m.counts.astype(int).tolist()
    words = {"n": m.sizes.astype(int).tolist(), "u": "images" if m.shares_of == "pixels" else "samples"}
    percent = {"p": 1} if m.shares_of else {}
    return data_attribute(
        "grid", {**grid, "names": m.names, "classes": m.classes, "v": values, **words, **percent}
    )


def _cells(m: _Map) -> list[str]:
    """One shape per shade; cells that are large enough show their count."""
    gap = 1.5 if min(m.w, m.h) > 7 else 0.5 if min(m.w, m.h) > 3 else 0.0
    level = np.ceil(SHADES * np.sqrt(m.counts / max(m.counts.max(), 1))).astype(int)
    K, C = m.counts.shape
    parts = [f'<rect class="empty" x="{m.left:.1f}" y="{TOP}" width="{K * m.w:.1f}" height="{C * m.h:.1f}"/>']
    for shade in range(1, SHADES + 1):
        boxes = [
            (m.left + k * m.w, TOP + c * m.h, m.w - gap, m.h - gap) for k, c in np.argwhere(level == shade)
        ]
        parts.append(rects(boxes, f"q{shade}"))
    if m.w >= 27 and m.h >= 15:
        for k, c in np.argwhere(m.counts > 0):
            x, y = m.left + (k + 0.5) * m.w - gap / 2, TOP + (c + 0.5) * m.h + 3.5
            count = f"{m.counts[k, c]:.{int(bool(m.shares_of))}f}"
            parts.append(text(x, y, count, f"count on{level[k, c]}", "middle"))
    return parts


def _legend(left: float, words: str) -> str:
    boxes = "".join(
        f'<rect class="q{i}" x="{left + 17 * (i - 1):.1f}" y="2" width="16" height="10"/>'
        for i in range(1, SHADES + 1)
    )
    return boxes + text(left + 17 * SHADES + 6, 11, words)


def _class_names(m: _Map, letters: int) -> list[str]:
    every = max(1, math.ceil(12 / m.h))
    return [
        text(m.left - 8, TOP + (c + 0.5) * m.h + 4, shorten(name, letters), anchor="end")
        for c, name in enumerate(m.classes)
        if c % every == 0
    ]


def _sizes(m: _Map, top: float, tall: float = 36) -> list[str]:
    """A bar per client, as high as its number of samples."""
    most = max(float(m.sizes.max()), 1.0)
    gap = 1.5 if m.w > 7 else 0.5 if m.w > 3 else 0.0
    heights = [(k, tall * s / most) for k, s in enumerate(m.sizes) if s]
    return [
        rects([(m.left + k * m.w, top + tall - height, m.w - gap, height) for k, height in heights], "bar"),
        text(m.left - 8, top + 11, whole_number(most), anchor="end"),
        text(m.left - 8, top + tall, "samples", anchor="end"),
    ]


def _client_names(m: _Map, clients: int, y: float) -> str:
    """The names of all clients, upright or slanted, if there is room; else some of their numbers."""
    K, middle = len(m.names), m.left + len(m.names) * m.w / 2
    short = [n.removeprefix("client-") for n in m.names]
    shown = plural(K, "client") if clients == K else f"the first {K} of {clients:,} clients"
    if 6.6 * max(map(len, short)) + 6 <= m.w:
        label = shown if short == m.names else f"client, 0 to {K - 1}"
        names = [text(m.left + (k + 0.5) * m.w, y, n, anchor="middle") for k, n in enumerate(short)]
        return "".join([*names, text(middle, y + 22, label, "axis", "middle")])
    if short == m.names and m.w >= 13:
        return "".join(_slanted(m.left + (k + 0.5) * m.w + 4, y - 4, n) for k, n in enumerate(m.names))
    step = max(1, int(step_of(K, max(2, int(K * m.w // 60)))))
    numbers = [text(m.left + (k + 0.5) * m.w, y, str(k), anchor="middle") for k in range(0, K, step)]
    return "".join([*numbers, text(middle, y + 22, shown, "axis", "middle")])


def _slanted(x: float, y: float, name: str) -> str:
    turned = f'transform="translate({x:.1f} {y:.1f}) rotate(-40)"'
    return f'<text class="tick" text-anchor="end" {turned}>{escape_xml(shorten(name, 10))}</text>'
