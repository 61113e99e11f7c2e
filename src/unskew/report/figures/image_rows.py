"""Rows of images: inputs that clients receive from others, and reconstructions by an attacker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from unskew.report.figures.svg import NARROW, WIDE, shorten, svg, text

IMAGES_LEFT = 110.0


def received_inputs(measured: Mapping[str, Any], classes: Sequence[str], *, width: int = WIDE) -> str:
    """One picture with a row of inputs per class.

    measured: {"classes": indices of the rows' classes, "columns": inputs in a row, "png": the picture in
    base64}.
    """
    rows = measured["classes"]
    names = [str(classes[c]) if c < len(classes) else str(c) for c in rows]
    cell = min(44.0, (width - IMAGES_LEFT) / measured["columns"])
    parts = [
        text(IMAGES_LEFT - 10, (i + 0.6) * cell, shorten(name, 13), anchor="end")
        for i, name in enumerate(names)
    ]
    place = (
        f'x="{IMAGES_LEFT}" y="0" width="{measured["columns"] * cell:.1f}" height="{len(rows) * cell:.1f}"'
    )
    scaled = f'{place} preserveAspectRatio="none" style="image-rendering:pixelated"'
    parts.append(f'<image {scaled} href="data:image/png;base64,{escape(measured["png"])}"/>')
    return svg(width, len(rows) * cell + 4, f"Inputs received from others, of {len(rows)} classes", parts)


def reconstructions(sheet: Mapping[str, Any], *, width: int = WIDE) -> str:
    """One picture with a row of samples for each of `rows`, such as "there", "linear decoder" and "class
    mean".

    sheet: {"rows": names, "columns": samples in a row, "png": the picture in base64}.
    """
    left = 110.0 if width == NARROW else 190.0
    cell = min(64.0, (width - left) / max(1, sheet["columns"]))
    rows = [str(name) for name in sheet["rows"]]
    letters = 15 if width == NARROW else 28
    parts = [
        text(left - 10, (i + 0.6) * cell, shorten(name, letters), "label", anchor="end")
        for i, name in enumerate(rows)
    ]
    place = f'x="{left}" y="0" width="{sheet["columns"] * cell:.1f}" height="{len(rows) * cell:.1f}"'
    scaled = f'{place} preserveAspectRatio="none" style="image-rendering:pixelated"'
    parts.append(f'<image {scaled} href="data:image/png;base64,{escape(str(sheet["png"]))}"/>')
    return svg(
        width, len(rows) * cell + 4, f"Samples and what was made of payloads: {', '.join(rows)}", parts
    )
