"""Class shares of a shared buffer, of clients' own data, and of mixed batches (FLea, figure 7)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unskew.report.figures.svg import NARROW, WIDE, line, shorten, svg, text, tooltip

TALL, STEP = 70, 128
"""Height of a panel, and of a row of panels."""


def histograms(shares: Mapping[str, Any], classes: Sequence[str], most: int = 3, *, width: int = WIDE) -> str:
    """A panel for the buffer, and two for each of the first `most` clients; "" without a buffer.

    shares: {"buffer": [C], "local": [[C]...], "mixed": [[C]...], "names": clients' names, optional}; counts
    or shares.
    """
    if not shares.get("buffer"):
        return ""
    panels, names = [("buffer", shares["buffer"], "q6")], dict(enumerate(shares.get("names", [])))
    for kind, shade, words in (("local", "m1", "own data"), ("mixed", "m2", "mixed")):
        rows = enumerate(shares.get(kind, [])[:most])
        panels += [(f"{names.get(k, f'client {k}')}: {words}", row, shade) for k, row in rows if sum(row)]
    columns, gap = (2 if width == NARROW else 1 + most), 28
    w = (width - gap * (columns - 1)) / columns
    places = _places(len(panels), most, columns, width == NARROW)
    parts = []
    for (title, values, shade), (column, row) in zip(panels, places):
        parts.append(_panel(title, values, classes, (column * (w + gap), row * STEP + 20, w), shade))
    rows = 1 + max(row for _, row in places[: len(panels)])
    label = "Class shares: the shared buffer, clients' own data, and the mixture of both"
    return svg(width, rows * STEP - 18, label, parts)


def _places(panels: int, most: int, columns: int, narrow: bool) -> list[tuple[int, int]]:
    """(column, row) of each panel: the buffer, then the data of each client above or left of its mixture."""
    if panels != 1 + 2 * most:
        return [(i % columns, i // columns) for i in range(panels)]
    if narrow:
        return [(0, 0)] + [(0, 1 + i) for i in range(most)] + [(1, 1 + i) for i in range(most)]
    return [(0, 0)] + [(1 + i, 0) for i in range(most)] + [(1 + i, 1) for i in range(most)]


def _panel(
    title: str, values: Sequence[float], classes: Sequence[str], place: tuple[float, float, float], shade: str
) -> str:
    """A bar per class, as high as the panel for the largest. place: (x, y, width)."""
    x, y, w = place
    share = np.array(values, dtype=float) / max(sum(values), 1e-12)
    bar, high = w / len(share), max(float(share.max()), 1e-12)
    parts = [text(x, y - 7, title, "label")]
    if w > 200:
        parts.append(text(x + w, y - 7, f"max {100 * high:.0f} %", anchor="end"))
    for c, s in enumerate(share.tolist()):
        h = TALL * s / high
        words = tooltip(f"class {classes[c] if c < len(classes) else c}: {100 * s:.1f} %")
        parts.append(
            f'<rect class="fill {shade}" x="{x + c * bar:.1f}" y="{y + TALL - h:.1f}" '
            f'width="{max(bar - 1.5, 0.5):.1f}" height="{h:.1f}">{words}</rect>'
        )
    every = max(1, math.ceil(22 / bar))
    letters = max(3, int(every * bar / 7))
    named = [c for c in range(0, len(share), every) if c < len(classes)]
    parts.append(line(x, y + TALL, x + w, y + TALL, "base"))
    parts += [
        text(x + (c + 0.5) * bar, y + TALL + 14, shorten(str(classes[c]), letters), anchor="middle")
        for c in named
    ]
    return "".join(parts)
