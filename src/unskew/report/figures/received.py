"""Inputs that clients receive from others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from unskew.report.figures.svg import WIDE, shorten, svg, text

LEFT = 110.0


def received(measured: Mapping[str, Any], classes: Sequence[str], *, width: int = WIDE) -> str:
    """One picture with a row of inputs per class.

    measured: {"classes": indices of the rows' classes, "columns": inputs in a row, "png": the picture in base64}.
    """
    rows = measured["classes"]
    names = [str(classes[c]) if c < len(classes) else str(c) for c in rows]
    cell = min(44.0, (width - LEFT) / measured["columns"])
    parts = [text(LEFT - 10, (i + 0.6) * cell, shorten(name, 13), anchor="end") for i, name in enumerate(names)]
    place = f'x="{LEFT}" y="0" width="{measured["columns"] * cell:.1f}" height="{len(rows) * cell:.1f}"'
    scaled = f'{place} preserveAspectRatio="none" style="image-rendering:pixelated"'
    parts.append(f'<image {scaled} href="data:image/png;base64,{escape(measured["png"])}"/>')
    return svg(width, len(rows) * cell + 4, f"Inputs received from others, of {len(rows)} classes", parts)
