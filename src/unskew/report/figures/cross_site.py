"""Scores of each site's model on every other site's test rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from unskew.report.figures.svg import SHADES, WIDE, every, rects, shorten, svg, text

LEFT, TOP, ROW = 96.0, 42.0, 30.0


def cross_site(measured: Mapping[str, Any], *, width: int = WIDE) -> str:
    """The site that trained down, the site that is tested at across, scores in percent; "" if no site trained.

    measured: {"names": [K], "score": [K, K] scores in [0, 1] or None}.
    """
    names = measured["names"]
    trained = [(n, row) for n, row in zip(names, measured["score"]) if any(v is not None for v in row)]
    if not trained:
        return ""
    w = min(92.0, (width - LEFT - 8) / len(names))
    across, gap = every(w, 22), min(2.0, 0.2 * w)
    letters = max(3, int(across * w // 8))
    parts = [text(LEFT, 12, "tested at →", "axis"), text(LEFT - 10, TOP - 8, "trained at ↓", "axis", "end")]
    parts += [
        text(LEFT + (j + 0.5) * w, TOP - 8, shorten(n, letters), anchor="middle")
        for j, n in enumerate(names)
        if j % across == 0
    ]
    for i, (name, row) in enumerate(trained):
        y = TOP + i * ROW
        parts.append(text(LEFT - 10, y + 0.6 * ROW, shorten(name, 12), anchor="end"))
        for j, value in enumerate(row):
            if value is None:
                continue
            shade = max(1, int(np.ceil(SHADES * value)))
            parts.append(rects([(LEFT + j * w, y, w - gap, ROW - 2)], f"q{shade}"))
            if w >= 27:
                score = f"{100 * value:.1f}"
                parts.append(text(LEFT + (j + 0.5) * w - 1, y + 0.5 * ROW + 3, score, f"count on{shade}", "middle"))
    label = f"Scores in percent of the models of {len(trained)} sites at each of {len(names)} sites"
    return svg(width, TOP + len(trained) * ROW + 8, label, parts)
