"""What the buffer, the clients and the mixed batches hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from unskew.report.svg import NARROW, WIDE, line, shorten, svg, text, tip


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
