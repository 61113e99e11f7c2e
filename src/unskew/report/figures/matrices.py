"""Matrices: confusion of classes, scores of sites' models at other sites, and data received from clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unskew.report.figures.svg import SHADES, WIDE, label_stride, rects, shorten, svg, text

CONFUSION_LEFT, CONFUSION_TOP, WIDEST = 110.0, 42.0, 64.0


def confusion(
    counts: Sequence[Sequence[int]], classes: Sequence[str], where: str, *, width: int = WIDE
) -> str:
    """Each cell's share of its true class in percent; "" without samples.

    counts: [C, C], true classes down. where: whose samples these are, for the description.
    """
    totals = [sum(row) for row in counts]
    if not sum(totals):
        return ""
    w = min(WIDEST, (width - CONFUSION_LEFT - 8) / len(counts))
    h, across = min(w, 26.0), label_stride(w, 16)
    gap, down, letters = (1.0 if w > 5 else 0.15 * w), label_stride(h, 11), max(2, int(across * w // 8))
    parts = [
        text(CONFUSION_LEFT, 12, "taken for →", "axis"),
        text(CONFUSION_LEFT - 10, CONFUSION_TOP - 8, "class ↓", "axis", "end"),
    ]
    names = [str(classes[c]) if c < len(classes) else str(c) for c in range(len(counts))]
    parts += [
        text(CONFUSION_LEFT + (j + 0.5) * w, CONFUSION_TOP - 8, shorten(n, letters), anchor="middle")
        for j, n in enumerate(names)
        if j % across == 0
    ]
    for i, (row, total) in enumerate(zip(counts, totals)):
        y = CONFUSION_TOP + i * h
        if i % down == 0:
            parts.append(text(CONFUSION_LEFT - 10, y + 0.5 * h + 4, shorten(names[i], 13), anchor="end"))
        for j, count in enumerate(row):
            if not count:
                continue
            shade = max(1, math.ceil(SHADES * count / total))
            parts.append(rects([(CONFUSION_LEFT + j * w, y, w - gap, h - gap)], f"q{shade}"))
            if w >= 27 and h >= 14:
                percent = f"{100 * count / total:.0f}"
                parts.append(
                    text(
                        CONFUSION_LEFT + (j + 0.5) * w, y + 0.5 * h + 4, percent, f"count on{shade}", "middle"
                    )
                )
    right = sum(row[i] for i, row in enumerate(counts))
    label = f"Which class is taken for which, {where}: {right:,} of {sum(totals):,} samples right"
    return svg(width, CONFUSION_TOP + len(counts) * h + 8, label, parts)


SITES_LEFT, SITES_TOP, SITES_ROW = 96.0, 42.0, 30.0


def cross_site(measured: Mapping[str, Any], *, width: int = WIDE) -> str:
    """The site that trained down, the site that is tested at across, scores in percent; "" if no site
    trained.

    measured: {"names": [K], "score": [K, K] scores in [0, 1] or None}.
    """
    names = measured["names"]
    trained = [(n, row) for n, row in zip(names, measured["score"]) if any(v is not None for v in row)]
    if not trained:
        return ""
    w = min(92.0, (width - SITES_LEFT - 8) / len(names))
    across, gap = label_stride(w, 22), min(2.0, 0.2 * w)
    letters = max(3, int(across * w // 8))
    parts = [
        text(SITES_LEFT, 12, "tested at →", "axis"),
        text(SITES_LEFT - 10, SITES_TOP - 8, "trained at ↓", "axis", "end"),
    ]
    parts += [
        text(SITES_LEFT + (j + 0.5) * w, SITES_TOP - 8, shorten(n, letters), anchor="middle")
        for j, n in enumerate(names)
        if j % across == 0
    ]
    for i, (name, row) in enumerate(trained):
        y = SITES_TOP + i * SITES_ROW
        parts.append(text(SITES_LEFT - 10, y + 0.6 * SITES_ROW, shorten(name, 12), anchor="end"))
        for j, value in enumerate(row):
            if value is None:
                continue
            shade = max(1, int(np.ceil(SHADES * value)))
            parts.append(rects([(SITES_LEFT + j * w, y, w - gap, SITES_ROW - 2)], f"q{shade}"))
            if w >= 27:
                score = f"{100 * value:.1f}"
                parts.append(
                    text(
                        SITES_LEFT + (j + 0.5) * w - 1,
                        y + 0.5 * SITES_ROW + 3,
                        score,
                        f"count on{shade}",
                        "middle",
                    )
                )
    label = f"Scores in percent of the models of {len(trained)} sites at each of {len(names)} sites"
    return svg(width, SITES_TOP + len(trained) * SITES_ROW + 8, label, parts)


MOST_CLIENTS = 60
"""The most clients that are shown."""
EXPOSURE_LEFT, EXPOSURE_TOP = 64.0, 24.0


def exposure(measured: Mapping[str, Any], rounds: int, *, width: int = WIDE) -> str:
    """Owners down, receivers across; the stronger a cell's colour, the earlier of `rounds` rounds. "" without
    clients.

    measured: {"share": of all pairs, "since": [K, K] first round in which the row's client reached the
    column's, 0 for never, "names": [K]}.
    """
    if not measured["since"]:
        return ""
    since = np.array(measured["since"])[:MOST_CLIENTS, :MOST_CLIENTS]
    K = len(since)
    cell = min(14.0, (width - EXPOSURE_LEFT - 12) / K)
    gap = 1.0 if cell > 5 else 0.3
    level = np.where(since > 0, SHADES - (SHADES * (since - 1) / max(rounds, 1)).astype(int), 0).clip(
        0, SHADES
    )
    parts = [
        f'<rect class="empty" x="{EXPOSURE_LEFT}" y="{EXPOSURE_TOP}" width="{K * cell:.1f}"'
        f' height="{K * cell:.1f}"/>'
    ]
    for q in range(1, SHADES + 1):
        boxes = [
            (EXPOSURE_LEFT + j * cell, EXPOSURE_TOP + i * cell, cell - gap, cell - gap)
            for i, j in np.argwhere(level == q)
        ]
        parts.append(rects(boxes, f"q{q}"))
    shown = (
        f"the first {K} clients"
        if max(len(measured["names"]), len(measured["since"])) > K
        else f"{K} clients"
    )
    parts += [
        text(EXPOSURE_LEFT, 12, f"{shown}: who receives →", "axis"),
        text(EXPOSURE_LEFT - 8, EXPOSURE_TOP + 10, "whose ↓", "axis", "end"),
    ]
    share = f"{100 * measured['share']:.1f} % of pairs"
    words = f"{share}; strong: since an early round, faint: since a late one, empty: never"
    parts.append(text(EXPOSURE_LEFT, EXPOSURE_TOP + K * cell + 18, words if width == WIDE else share))
    return svg(width, EXPOSURE_TOP + K * cell + 28, f"Exposure: {words}", parts)
