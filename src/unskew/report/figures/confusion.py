"""Which class is taken for which: true classes down, predicted ones across."""

from __future__ import annotations

import math
from collections.abc import Sequence

from unskew.report.figures.svg import SHADES, WIDE, every, rects, shorten, svg, text

LEFT, TOP, WIDEST = 110.0, 42.0, 64.0


def confusion(counts: Sequence[Sequence[int]], classes: Sequence[str], where: str, *, width: int = WIDE) -> str:
    """Each cell's share of its true class in percent; "" without samples.

    counts: [C, C], true classes down. where: whose samples these are, for the description.
    """
    totals = [sum(row) for row in counts]
    if not sum(totals):
        return ""
    w = min(WIDEST, (width - LEFT - 8) / len(counts))
    h, across = min(w, 26.0), every(w, 16)
    gap, down, letters = (1.0 if w > 5 else 0.15 * w), every(h, 11), max(2, int(across * w // 8))
    parts = [text(LEFT, 12, "taken for →", "axis"), text(LEFT - 10, TOP - 8, "class ↓", "axis", "end")]
    names = [str(classes[c]) if c < len(classes) else str(c) for c in range(len(counts))]
    parts += [
        text(LEFT + (j + 0.5) * w, TOP - 8, shorten(n, letters), anchor="middle")
        for j, n in enumerate(names)
        if j % across == 0
    ]
    for i, (row, total) in enumerate(zip(counts, totals)):
        y = TOP + i * h
        if i % down == 0:
            parts.append(text(LEFT - 10, y + 0.5 * h + 4, shorten(names[i], 13), anchor="end"))
        for j, count in enumerate(row):
            if not count:
                continue
            shade = max(1, math.ceil(SHADES * count / total))
            parts.append(rects([(LEFT + j * w, y, w - gap, h - gap)], f"q{shade}"))
            if w >= 27 and h >= 14:
                percent = f"{100 * count / total:.0f}"
                parts.append(text(LEFT + (j + 0.5) * w, y + 0.5 * h + 4, percent, f"count on{shade}", "middle"))
    right = sum(row[i] for i, row in enumerate(counts))
    label = f"Which class is taken for which, {where}: {right:,} of {sum(totals):,} samples right"
    return svg(width, TOP + len(counts) * h + 8, label, parts)
