"""Who holds what: classes by clients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from unskew.report.numbers import plural, whole
from unskew.report.svg import NARROW, WIDE, data, rects, shorten, step_of, svg, text

SHADES = 8
MOST_CLIENTS = 200


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
