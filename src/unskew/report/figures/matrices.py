"""Matrices: confusion of classes, scores of sites' models at other sites, and data received from clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unskew.report.figures.svg import SHADES, WIDTH, label_stride, rects, shorten, svg, text

TOP = 42.0


def confusion(counts: Sequence[Sequence[int]], classes: Sequence[str], where: str) -> str:
    """Each cell's share of its true class in percent; "" without samples.

    counts: [C, C], true classes down. where: the owner of the samples, for the description.
    """
    totals = [sum(row) for row in counts]
    if not sum(totals):
        return ""
    left = 110.0
    w = min(64.0, (WIDTH - left - 8) / len(counts))
    h, gap = min(w, 26.0), (1.0 if w > 5 else 0.15 * w)
    across, down = label_stride(w, 16), label_stride(h, 11)
    names = [str(classes[c]) if c < len(classes) else str(c) for c in range(len(counts))]
    parts = [text(left, 12, "taken for →", "axis"), text(left - 10, TOP - 8, "class ↓", "axis", "end")]
    parts += _column_names(names, left, w, across, max(2, int(across * w // 8)))
    for i, (row, total) in enumerate(zip(counts, totals)):
        y = TOP + i * h
        if i % down == 0:
            parts.append(text(left - 10, y + 0.5 * h + 4, shorten(names[i], 13), anchor="end"))
        for j, count in enumerate(row):
            if not count:
                continue
            shade = max(1, math.ceil(SHADES * count / total))
            parts.append(rects([(left + j * w, y, w - gap, h - gap)], f"q{shade}"))
            if w >= 27 and h >= 14:
                middle, percent = left + (j + 0.5) * w, f"{100 * count / total:.0f}"
                parts.append(text(middle, y + 0.5 * h + 4, percent, f"count on{shade}", "middle"))
    right = sum(row[i] for i, row in enumerate(counts))
    label = f"Which class is taken for which, {where}: {right:,} of {sum(totals):,} samples right"
    return svg(TOP + len(counts) * h + 8, label, parts)


def cross_site(measured: Mapping[str, Any]) -> str:
    """The site that trained down, the site that is tested at across, scores in percent; "" if no site
    trained.

    measured: {"names": [K], "score": [K, K] scores in [0, 1] or None}.
    """
    names = measured["names"]
    trained = [(n, row) for n, row in zip(names, measured["score"]) if any(v is not None for v in row)]
    if not trained:
        return ""
    left, h = 96.0, 30.0
    w = min(92.0, (WIDTH - left - 8) / len(names))
    across, gap = label_stride(w, 22), min(2.0, 0.2 * w)
    parts = [text(left, 12, "tested at →", "axis"), text(left - 10, TOP - 8, "trained at ↓", "axis", "end")]
    parts += _column_names(names, left, w, across, max(3, int(across * w // 8)))
    for i, (name, row) in enumerate(trained):
        y = TOP + i * h
        parts.append(text(left - 10, y + 0.6 * h, shorten(name, 12), anchor="end"))
        for j, value in enumerate(row):
            if value is None:
                continue
            shade = max(1, math.ceil(SHADES * value))
            parts.append(rects([(left + j * w, y, w - gap, h - 2)], f"q{shade}"))
            if w >= 27:
                middle, score = left + (j + 0.5) * w - 1, f"{100 * value:.1f}"
                parts.append(text(middle, y + 0.5 * h + 3, score, f"count on{shade}", "middle"))
    label = f"Scores in percent of the models of {len(trained)} sites at each of {len(names)} sites"
    return svg(TOP + len(trained) * h + 8, label, parts)


def _column_names(names: Sequence[str], left: float, w: float, stride: int, letters: int) -> list[str]:
    return [
        text(left + (j + 0.5) * w, TOP - 8, shorten(name, letters), anchor="middle")
        for j, name in enumerate(names)
        if j % stride == 0
    ]


MOST_CLIENTS = 60
"""The most clients that are shown."""


def exposure(measured: Mapping[str, Any], rounds: int) -> str:
    """Owners down, receivers across; the stronger a cell's colour, the earlier of `rounds` rounds. "" without
    clients.

    measured: {"share": of all pairs, "since": [K, K] first round in which the row's client reached the
    column's, 0 for never, "names": [K]}.
    """
    if not measured["since"]:
        return ""
    since = np.array(measured["since"])[:MOST_CLIENTS, :MOST_CLIENTS]
    K, left, top = len(since), 64.0, 24.0
    cell = min(14.0, (WIDTH - left - 12) / K)
    side, gap = K * cell, 1.0 if cell > 5 else 0.3
    level = np.where(since > 0, SHADES - (SHADES * (since - 1) / max(rounds, 1)).astype(int), 0)
    parts = [f'<rect class="empty" x="{left}" y="{top}" width="{side:.1f}" height="{side:.1f}"/>']
    for q in range(1, SHADES + 1):
        cells = np.argwhere(level.clip(0, SHADES) == q)
        parts.append(
            rects([(left + j * cell, top + i * cell, cell - gap, cell - gap) for i, j in cells], f"q{q}")
        )
    first = "the first " if max(len(measured["names"]), len(measured["since"])) > K else ""
    parts.append(text(left, 12, f"{first}{K} clients: who receives →", "axis"))
    parts.append(text(left - 8, top + 10, "whose ↓", "axis", "end"))
    share = f"{100 * measured['share']:.1f} % of pairs"
    words = f"{share}; strong: since an early round, faint: since a late one, empty: never"
    parts.append(text(left, top + side + 18, words))
    return svg(top + side + 28, f"Exposure: {words}", parts)
