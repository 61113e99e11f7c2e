"""Test features as points in the plane, coloured by client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from unskew.report.figures.svg import HUES, WIDE, shorten, svg, text

TITLES = {"local": "local models, after their last local training", "global": "the global model"}
GAP = 34.0
"""The vertical gap between panels, with room for a title."""


class Mark(NamedTuple):
    """The mark of a client's points: dots in eight colours, then crosses."""

    hue: int
    cross: bool


def tsne(measured: Mapping[str, Any], *, width: int = WIDE) -> str:
    """Panels for local models and for the global model, if they were measured; "" without any.

    measured: {"names": clients' names, and per panel {"client": [N], "xy": [N, 2]}}.
    """
    panels = [(title, measured[kind]) for kind, title in TITLES.items() if kind in measured]
    if not panels:
        return ""
    clients = list(dict.fromkeys(k for _, panel in panels for k in panel["client"]))
    hues = {k: Mark(i % HUES, cross=i >= HUES) for i, k in enumerate(clients)}
    legend, top = _legend({k: _name(k, measured["names"]) for k in clients}, hues, width)
    horizontal = width == WIDE and len(panels) > 1
    side = (width - 24) / 2 if horizontal else min(float(width), 440.0)
    parts = [legend]
    for i, (title, panel) in enumerate(panels):
        x, y = (i * (side + 24), top) if horizontal else (0.0, top + i * (side + GAP))
        parts.append(text(x, y - 6, title, "label"))
        parts.append(f'<rect class="empty" x="{x:.1f}" y="{y:.1f}" width="{side:.1f}" height="{side:.1f}"/>')
        parts += _points(panel, hues, x, y, side)
    bottom = top + (side if horizontal or len(panels) == 1 else 2 * side + GAP)
    return svg(width, bottom + 4, f"Test features of {len(clients)} clients in the plane (t-SNE)", parts)


def _name(client: int, names: Sequence[str]) -> str:
    return shorten(str(names[client]) if client < len(names) else str(client), 16)


def _legend(names: Mapping[int, str], marks: Mapping[int, Mark], width: float) -> tuple[str, float]:
    """(marks and names of clients in several lines, the top of the panels)."""
    parts, x, y = [], 0.0, 14.0
    for k, name in names.items():
        if x + 24 + 7 * len(name) > width:
            x, y = 0.0, y + 18
        dot = f'<circle class="stop m{marks[k].hue}" cx="{x + 6:.1f}" cy="{y - 4:.1f}" r="4"/>'
        parts.append(_path([(x + 6, y - 4)], marks[k]) if marks[k].cross else dot)
        parts.append(text(x + 15, y, name))
        x += 30 + 7 * len(name)
    return "".join(parts), y + 26


def _points(
    panel: Mapping[str, Any], marks: Mapping[int, Mark], left: float, top: float, side: float
) -> list[str]:
    """A path of dots or crosses per client, with equal scales in both directions."""
    xy = np.array(panel["xy"], dtype=float).reshape(-1, 2)
    low, span = xy.min(0), float(np.ptp(xy, axis=0).max()) or 1.0
    places = (xy - low) / span * (side - 20) + 10
    owner = np.array(panel["client"])
    return [_path([(left + a, top + b) for a, b in places[owner == k]], mark) for k, mark in marks.items()]


def _path(places: Sequence[tuple[float, float]], mark: Mark) -> str:
    if mark.cross:
        return (
            f'<path class="curve m{mark.hue}"'
            f' d="{"".join(f"M{x - 2.5:.1f} {y:.1f}h5m-2.5 -2.5v5" for x, y in places)}"/>'
        )
    return f'<path class="dots many m{mark.hue}" d="{"".join(f"M{x:.1f} {y:.1f}h0" for x, y in places)}"/>'
