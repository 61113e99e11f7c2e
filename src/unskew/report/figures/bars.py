"""Bars: class shares of a shared buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unskew.report.figures.svg import (
    WIDTH,
    label_stride,
    line,
    shorten,
    svg,
    text,
    tooltip,
)

TALL, STEP = 70, 128
"""Height of a panel, and of a row of panels."""


def histograms(shares: Mapping[str, Any], classes: Sequence[str], most: int = 3) -> str:
    """Class shares (FLea, figure 7): a panel for the buffer, and two for each of the first `most` clients; ""
    without a buffer.

    shares: {"buffer": [C], "local": [[C]...], "mixed": [[C]...], "names": clients' names, optional}; counts
    or shares.
    """
    if not shares.get("buffer"):
        return ""
    names = dict(enumerate(shares.get("names", [])))
    panels = [("buffer", shares["buffer"], "q6")]
    for kind, shade, words in (("local", "m1", "own data"), ("mixed", "m2", "mixed")):
        rows = enumerate(shares.get(kind, [])[:most])
        panels += [(f"{names.get(k, f'client {k}')}: {words}", row, shade) for k, row in rows if sum(row)]
    columns, gap = 1 + most, 28
    w = (WIDTH - gap * (columns - 1)) / columns
    places = [(i % columns, i // columns) for i in range(len(panels))]
    if len(panels) == 1 + 2 * most:  # the data of each client stand above their mixture
        places = [(0, 0), *((1 + i, kind) for kind in (0, 1) for i in range(most))]
    parts = [
        _panel(title, values, classes, (column * (w + gap), row * STEP + 20, w), shade)
        for (title, values, shade), (column, row) in zip(panels, places)
    ]
    label = "Class shares: the shared buffer, clients' own data, and the mixture of both"
    return svg((1 + max(row for _, row in places)) * STEP - 18, label, parts)


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
    every = label_stride(bar, 22)
    letters = max(3, int(every * bar / 7))
    parts.append(line(x, y + TALL, x + w, y + TALL, "base"))
    for c in range(0, min(len(share), len(classes)), every):
        name = shorten(str(classes[c]), letters)
        parts.append(text(x + (c + 0.5) * bar, y + TALL + 14, name, anchor="middle"))
    return "".join(parts)
