"""Matrices: confusion of classes, scores of sites' models at other sites, and data received from clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from unskew.report.figures.svg import SHADES, WIDTH, label_stride, rects, shorten, svg, text

LEFT, TOP = 110.0, 42.0
MOST_CLIENTS = 60
"""The most clients of which pairs are shown."""


def confusion(counts: Sequence[Sequence[int]], classes: Sequence[str], where: str) -> str:
    """Each cell's share of its true class in percent; "" without samples.

    counts: [C, C], true classes down. where: the owner of the samples, for the description.
    """
    totals = [sum(row) for row in counts]
    if not sum(totals):
        return ""
    names = [str(classes[c]) if c < len(classes) else str(c) for c in range(len(counts))]
    shares = [[count / total if count else None for count in row] for row, total in zip(counts, totals)]
    right = sum(row[i] for i, row in enumerate(counts))
    label = f"Which class is taken for which, {where}: {right:,} of {sum(totals):,} samples right"
    return _matrix(shares, names, names, ("taken for →", "class ↓"), label, 0)


def cross_site(measured: Mapping[str, Any]) -> str:
    """The site that trained down, the site that is tested at across, scores in percent; "" if no site
    trained.

    measured: {"names": [K], "score": [K, K] scores in [0, 1] or None}.
    """
    names = measured["names"]
    trained = [(n, row) for n, row in zip(names, measured["score"]) if any(v is not None for v in row)]
    if not trained:
        return ""
    owners, scores = zip(*trained)
    label = f"Scores in percent of the models of {len(trained)} sites at each of {len(names)} sites"
    return _matrix(scores, owners, names, ("tested at →", "trained at ↓"), label, 1)


def exposure(measured: Mapping[str, Any], rounds: int) -> str:
    """Owners down, receivers across; the stronger a cell's colour, the earlier of `rounds` rounds. "" without
    clients.

    measured: {"share": of all pairs, "since": [K, K] first round in which the row's client reached the
    column's, 0 for never, "names": [K]}.
    """
    since = [row[:MOST_CLIENTS] for row in measured["since"][:MOST_CLIENTS]]
    if not since:
        return ""
    early = [[1 - (t - 1) / max(rounds, 1) if t else None for t in row] for row in since]
    first = "the first " if len(measured["since"]) > len(since) else ""
    words = f"{100 * measured['share']:.1f} % of pairs; strong: since an early round, faint: since a late one"
    names = [str(name) for name in measured["names"]]
    heads = (f"{first}{len(since)} clients: who receives →", "from ↓")
    return _matrix(early, names, names, heads, f"Exposure: {words}", None)


def _matrix(
    values: Sequence[Sequence[float | None]],
    rows: Sequence[str],
    columns: Sequence[str],
    heads: tuple[str, str],
    label: str,
    decimals: int | None,
) -> str:
    """Cells with values in [0, 1] as shades, and in percent where there is room; None is no cell.

    heads: of the columns and of the rows. decimals: of the percents; None: without.
    """
    w = min(64.0, (WIDTH - LEFT - 8) / max(1, len(values[0])))
    h, gap = min(w, 26.0), (1.0 if w > 5 else 0.15 * w)
    across, down = label_stride(w, 22), label_stride(h, 11)
    parts = [text(LEFT, 12, heads[0], "axis"), text(LEFT - 10, TOP - 8, heads[1], "axis", "end")]
    parts += [
        text(
            LEFT + (j + 0.5) * w, TOP - 8, shorten(columns[j], max(2, int(across * w // 8))), anchor="middle"
        )
        for j in range(0, len(values[0]), across)
    ]
    for i, row in enumerate(values):
        y = TOP + i * h
        if i % down == 0:
            parts.append(text(LEFT - 10, y + 0.5 * h + 4, shorten(rows[i], 13), anchor="end"))
        for j, value in enumerate(row):
            if value is None:
                continue
            shade = min(SHADES, max(1, math.ceil(SHADES * value)))
            parts.append(rects([(LEFT + j * w, y, w - gap, h - gap)], f"q{shade}"))
            if decimals is not None and w >= 27 and h >= 14:
                middle, percent = LEFT + (j + 0.5) * w, f"{100 * value:.{decimals}f}"
                parts.append(text(middle, y + 0.5 * h + 4, percent, f"count on{shade}", "middle"))
    return svg(TOP + len(values) * h + 8, label, parts)
