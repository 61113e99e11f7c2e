"""Which client has received something that another one shared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from unskew.report.figures.svg import SHADES, WIDE, rects, svg, text

MOST_CLIENTS = 60
"""Of more clients, the first so many are shown."""
LEFT, TOP = 64.0, 24.0


def exposure(measured: Mapping[str, Any], rounds: int, *, width: int = WIDE) -> str:
    """Owners down, receivers across; the stronger a cell's colour, the earlier of `rounds` rounds. "" without clients.

    measured: {"share": of all pairs, "since": [K, K] first round in which the row's client reached the column's, 0 for
    never, "names": [K]}.
    """
    if not measured["since"]:
        return ""
    since = np.array(measured["since"])[:MOST_CLIENTS, :MOST_CLIENTS]
    K = len(since)
    cell = min(14.0, (width - LEFT - 12) / K)
    gap = 1.0 if cell > 5 else 0.3
    level = np.where(since > 0, SHADES - (SHADES * (since - 1) / max(rounds, 1)).astype(int), 0).clip(0, SHADES)
    parts = [f'<rect class="empty" x="{LEFT}" y="{TOP}" width="{K * cell:.1f}" height="{K * cell:.1f}"/>']
    for q in range(1, SHADES + 1):
        boxes = [(LEFT + j * cell, TOP + i * cell, cell - gap, cell - gap) for i, j in np.argwhere(level == q)]
        parts.append(rects(boxes, f"q{q}"))
    shown = f"the first {K} clients" if max(len(measured["names"]), len(measured["since"])) > K else f"{K} clients"
    parts += [text(LEFT, 12, f"{shown}: who receives →", "axis"), text(LEFT - 8, TOP + 10, "whose ↓", "axis", "end")]
    share = f"{100 * measured['share']:.1f} % of pairs"
    words = f"{share}; strong: since an early round, faint: since a late one, empty: never"
    parts.append(text(LEFT, TOP + K * cell + 18, words if width == WIDE else share))
    return svg(width, TOP + K * cell + 28, f"Exposure: {words}", parts)
