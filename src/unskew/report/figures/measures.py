"""Pictures of measures and attacks: class shares, images, features in the plane, and matrices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from unskew.report.figures.svg import HUES, SHADES, WIDTH, dots, label_stride, rects, shorten, svg, text


def histograms(shares: Mapping[str, Any], classes: Sequence[str]) -> str:
    """Class shares (FLea, figure 7): a row for the buffer, and two for each of the first three clients; ""
    without a buffer.

    shares: {"buffer": [C], "local": [[C]...], "mixed": [[C]...], "names": clients' names, optional}; counts
    or shares.
    """
    if not shares.get("buffer"):
        return ""
    names = dict(enumerate(shares.get("names", [])))
    rows = {"buffer": shares["buffer"]}
    for kind, words in (("local", "own"), ("mixed", "mix")):
        for k, row in enumerate(shares.get(kind, [])[:3]):
            if sum(row):
                rows[f"{words}, {names.get(k, f'client {k}')}"] = row
    values = [[share / sum(row) if share else None for share in row] for row in rows.values()]
    columns = [str(classes[c]) if c < len(classes) else str(c) for c in range(len(shares["buffer"]))]
    label = "Class shares in %: the shared buffer, clients' own data, and the mixture of both"
    return _matrix(values, list(rows), columns, ("class →", "data ↓"), label, 0)


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


LEFT, TOP = 110.0, 42.0
MOST_CLIENTS = 60
"""The most clients of which pairs are shown."""


def confusion(counts: Sequence[Sequence[int]], classes: Sequence[str], where: str) -> str:
    """Each cell's share of its true class in percent; "" without samples.

    counts: [C, C], true classes down. where: the owner of the samples, for the description.
    """
    totals = [sum(row) for row in counts]
    if not sum(totals):
        return ""
    names = [str(classes[c]) if c < len(classes) else str(c) for c in range(len(counts))]
    shares = [[count / total if count else None for count in row] for row, total in zip(counts, totals)]
    right = sum(row[i] for i, row in enumerate(counts))
    label = f"Which class is taken for which, {where}: {right:,} of {sum(totals):,} samples right"
    return _matrix(shares, names, names, ("taken for →", "class ↓"), label, 0)


def cross_site(measured: Mapping[str, Any]) -> str:
    """The site that trained down, the site that is tested at across, scores in percent; "" if no site
    trained.

    measured: {"names": [K], "score": [K, K] scores in [0, 1] or None}.
    """
    names = measured["names"]
    trained = [(n, row) for n, row in zip(names, measured["score"]) if any(v is not None for v in row)]
    if not trained:
        return ""
    owners, scores = zip(*trained)
    label = f"Scores in percent of the models of {len(trained)} sites at each of {len(names)} sites"
    return _matrix(scores, owners, names, ("tested at →", "trained at ↓"), label, 1)


def exposure(measured: Mapping[str, Any], rounds: int) -> str:
    """Owners down, receivers across; the stronger a cell's colour, the earlier of `rounds` rounds. "" without
    clients.

    measured: {"share": of all pairs, "since": [K, K] first round in which the row's client reached the
    column's, 0 for never, "names": [K]}.
    """
    since = [row[:MOST_CLIENTS] for row in measured["since"][:MOST_CLIENTS]]
    if not since:
        return ""
    early = [[1 - (t - 1) / max(rounds, 1) if t else None for t in row] for row in since]
    first = "the first " if len(measured["since"]) > len(since) else ""
    words = f"{100 * measured['share']:.1f} % of pairs; strong: since an early round, faint: since a late one"
    names = [str(name) for name in measured["names"]]
    heads = (f"{first}{len(since)} clients: who receives →", "from ↓")
    return _matrix(early, names, names, heads, f"Exposure: {words}", None)


def _matrix(
    values: Sequence[Sequence[float | None]],
    rows: Sequence[str],
    columns: Sequence[str],
    heads: tuple[str, str],
    label: str,
    decimals: int | None,
) -> str:
    """Cells with values in [0, 1] as shades, and in percent where there is room; None is no cell.

    heads: of the columns and of the rows. decimals: of the percents; None: without.
    """
    w = min(64.0, (WIDTH - LEFT - 8) / max(1, len(values[0])))
    h, gap = min(w, 26.0), (1.0 if w > 5 else 0.15 * w)
    across, down = label_stride(w, 22), label_stride(h, 11)
    parts = [text(LEFT, 12, heads[0], "axis"), text(LEFT - 10, TOP - 8, heads[1], "axis", "end")]
    parts += [
        text(
            LEFT + (j + 0.5) * w, TOP - 8, shorten(columns[j], max(2, int(across * w // 8))), anchor="middle"
        )
        for j in range(0, len(values[0]), across)
    ]
    for i, row in enumerate(values):
        y = TOP + i * h
        if i % down == 0:
            parts.append(text(LEFT - 10, y + 0.5 * h + 4, shorten(rows[i], 13), anchor="end"))
        for j, value in enumerate(row):
            if value is None:
                continue
            shade = min(SHADES, max(1, math.ceil(SHADES * value)))
            parts.append(rects([(LEFT + j * w, y, w - gap, h - gap)], f"q{shade}"))
            if decimals is not None and w >= 27 and h >= 14:
                middle, percent = LEFT + (j + 0.5) * w, f"{100 * value:.{decimals}f}"
                parts.append(text(middle, y + 0.5 * h + 4, percent, f"count on{shade}", "middle"))
    return svg(TOP + len(values) * h + 8, label, parts)
