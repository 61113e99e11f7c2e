"""Inputs and features: rows of images, and test features as points in the plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from unskew.report.figures.svg import HUES, WIDTH, dots, shorten, svg, text


def image_rows(sheet: Mapping[str, Any], names: Sequence[str], title: str) -> str:
    """One picture with a row of inputs for each name.

    sheet: {"columns": inputs in a row, "png": the picture in base64}.
    """
    rows = [shorten(name, 28) for name in names]
    left = 190.0
    cell = min(64.0, (WIDTH - left) / max(1, sheet["columns"]))
    parts = [text(left - 10, (i + 0.6) * cell, name, "label", "end") for i, name in enumerate(rows)]
    place = f'x="{left}" y="0" width="{sheet["columns"] * cell:.1f}" height="{len(rows) * cell:.1f}"'
    scaled = f'{place} preserveAspectRatio="none" style="image-rendering:pixelated"'
    parts.append(f'<image {scaled} href="data:image/png;base64,{escape(str(sheet["png"]))}"/>')
    return svg(len(rows) * cell + 4, f"{title}: {', '.join(names)}", parts)


TITLES = {"local": "local models, after their last local training", "global": "the global model"}


def tsne(measured: Mapping[str, Any]) -> str:
    """Panels of points, coloured by client, for local models and the global model; "" without any.

    measured: {"names": clients' names, and per panel {"client": [N], "xy": [N, 2]}}.
    """
    panels = [(title, measured[kind]) for kind, title in TITLES.items() if kind in measured]
    if not panels:
        return ""
    clients = list(dict.fromkeys(k for _, panel in panels for k in panel["client"]))
    marks = {k: i for i, k in enumerate(clients)}
    parts, x, y = [], 0.0, 14.0
    for k, mark in marks.items():  # the legend
        name = shorten(str(measured["names"][k] if k < len(measured["names"]) else k), 16)
        if x + 24 + 7 * len(name) > WIDTH:
            x, y = 0.0, y + 18
        if mark >= HUES:
            parts.append(_points([(x + 6, y - 4)], mark))
        else:
            parts.append(f'<circle class="stop m{mark}" cx="{x + 6:.1f}" cy="{y - 4:.1f}" r="4"/>')
        parts.append(text(x + 15, y, name))
        x += 30 + 7 * len(name)
    top, side = y + 26, (WIDTH - 24) / 2
    for i, (title, panel) in enumerate(panels):
        x, y = i * (side + 24), top
        parts.append(text(x, y - 6, title, "label"))
        parts.append(f'<rect class="empty" x="{x:.1f}" y="{y:.1f}" width="{side:.1f}" height="{side:.1f}"/>')
        xy = np.array(panel["xy"], dtype=float).reshape(-1, 2)
        low, span = xy.min(0), float(np.ptp(xy, axis=0).max()) or 1.0  # equal scales in both directions
        places, owner = (xy - low) / span * (side - 20) + 10, np.array(panel["client"])
        parts += [_points([(x + a, y + b) for a, b in places[owner == k]], mark) for k, mark in marks.items()]
    return svg(top + side + 4, f"Test features of {len(clients)} clients in the plane (t-SNE)", parts)


def _points(places: Sequence[tuple[float, float]], mark: int) -> str:
    """Dots for the first HUES clients, crosses for others."""
    hue = mark % HUES
    if mark >= HUES:
        crosses = "".join(f"M{x - 2.5:.1f} {y:.1f}h5m-2.5 -2.5v5" for x, y in places)
        return f'<path class="curve m{hue}" d="{crosses}"/>'
    return dots(places, f" many m{hue}")
