"""Pictures of what a run measured: series in their own unit, who met whom, scores of pairs of sites, points in a plane."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from unskew.report.curves import Line
from unskew.report.numbers import MISSING
from unskew.report.stats import Score
from unskew.report.svg import (
    HUES,
    NARROW,
    WIDE,
    Scale,
    apart,
    least_step,
    line,
    plain_number,
    points,
    rects,
    shorten,
    svg,
    text,
    tip,
    x_axis,
)

TOLD = {
    "separation_train_local": "Separation of classes, training samples, local models",
    "separation_test_local": "Separation of classes, test samples, local models",
    "separation_train_global": "Separation of classes, training samples, global model",
    "separation_test_global": "Separation of classes, test samples, global model",
    "diversity": "Weight diversity",
    "correlation": "Distance correlation of inputs and shared features, R",
    "correlation_squared": "Distance correlation of inputs and shared features, R²",
    "exposure": "Exposed pairs of clients, share",
    "histogram_pool": "Class shares of the pool: distance from everybody's",
    "histogram_local": "Class shares of a client's own data: distance from everybody's",
    "histogram_mixed": "Class shares of what training sees: distance from everybody's",
    "received_likeness": "Received inputs whose nearest test row is of their class, share",
    "received_likeness_of_real": "The same of test rows themselves, share",
    "received_nearness": "Received inputs: distance to the nearest training sample, over that of test rows",
    "cross_site": "Local models at other sites, mean score",
    "sites_local": "Separation of sites, test features, local models",
    "sites_global": "Separation of sites, test features, global model",
}
"""Every measured number by its metric; pairs of sites are in their own picture."""
SHOWN = 60
"""Of more clients, the first so many are in the picture of who met whom."""
SHADES = 8


def number(s: Score) -> str:
    """`0.412 ± 0.031`, or `0.412` for one seed."""
    if not s.n:
        return MISSING
    return f"{s.mean:.3g} ± {s.std:.2g}" if s.n > 1 else f"{s.mean:.3g}"


def series(lines: Sequence[Line], what: str, *, width: int = WIDE, x_label: str = "round") -> str:
    """A curve a method, over rounds or what else `x_label` tells, in the measure's own unit; "" where nothing was measured twice."""
    lines = [c.thinned() for c in lines if len(c.x) > 1]
    if not lines:
        return ""
    narrow = width == NARROW
    left, right, top, bottom = (46, 124, 12, 48) if narrow else (56, 178, 12, 50)
    height = max(220 if narrow else 240, top + bottom + 18 * len(lines))
    xs, low, high = np.concatenate([c.x for c in lines]), *_range(lines)
    x = Scale(float(xs.min()), float(xs.max()), left, width - right, least=least_step(xs))
    y = Scale(low, high, height - bottom, top)
    parts = []
    for v in y.ticks(5):
        at = float(y(v))
        parts += [
            line(left, at, width - right, at, "grid"),
            text(left - 8, at + 4, plain_number(round(v, 9)), at="end"),
        ]
    parts.append(x_axis(x, height - bottom, top, x_label, plain_number, 4 if narrow else 7))
    parts += [_band(c, x, y) for c in lines if float(c.band.max()) > 0]
    for c in lines:
        kind = f"curve {c.colour}" + (" dashed" if c.dashed else "")
        told = tip(f"{c.name}: {c.y[-1]:.3g} at the end")
        parts.append(f'<polyline class="{kind}" points="{points(x(c.x), y(c.y))}">{told}</polyline>')
    edge, letters = width - right, 9 if narrow else 15
    for c, to in zip(lines, apart([float(y(c.y[-1])) for c in lines], 17, y.end, y.begin)):
        end, at = float(x(c.x[-1])), float(y(c.y[-1]))
        leader = f"M{end + 3:.1f} {at:.1f}L{edge + 8} {at:.1f}L{edge + 16} {to:.1f}"
        parts.append(f'<path class="leader {c.colour}" d="{leader}"/>')
        parts.append(f'<circle class="stop {c.colour}" cx="{end:.1f}" cy="{at:.1f}" r="3"/>')
        value = f' <tspan class="value">{c.y[-1]:.3g}</tspan></text>'
        parts.append(text(edge + 20, to + 4, shorten(c.name, letters), f"end {c.colour}").replace("</text>", value))
    told = "; ".join(f"{c.name} ends at {c.y[-1]:.3g}" for c in lines)
    return svg(width, height, f"{what} against {x_label}. {told}", parts)


def _range(lines: Sequence[Line]) -> tuple[float, float]:
    """The axis begins at 0 unless all values are far from it."""
    low, high = min(float((c.y - c.band).min()) for c in lines), max(float((c.y + c.band).max()) for c in lines)
    if 0 <= low < 0.6 * high:
        low = 0.0
    pad = 0.05 * ((high - low) or abs(high) or 1.0)
    return (low if low == 0 else low - pad), high + pad


def _band(c: Line, x: Scale, y: Scale) -> str:
    upper, lower = (np.clip(c.y + s * c.band, y.low, y.high) for s in (1, -1))
    return (
        f'<polygon class="band {c.colour}" points="{points(x(c.x), y(upper))} {points(x(c.x)[::-1], y(lower)[::-1])}"/>'
    )


def exposed(found: dict[str, Any], rounds: int, *, width: int = WIDE) -> str:
    """Who has received something of whose: owners down, receivers across; the darker, the earlier."""
    since = np.array(found["since"])[:SHOWN, :SHOWN]
    K = len(since)
    if not K:
        return ""
    left, top = 64.0, 24.0
    cell = min(14.0, (width - left - 12) / K)
    gap = 1.0 if cell > 5 else 0.3
    level = np.where(since > 0, SHADES - (SHADES * (since - 1) / max(rounds, 1)).astype(int), 0).clip(0, SHADES)
    parts = [f'<rect class="empty" x="{left}" y="{top}" width="{K * cell:.1f}" height="{K * cell:.1f}"/>']
    parts += [
        rects([(left + j * cell, top + i * cell, cell - gap, cell - gap) for i, j in np.argwhere(level == q)], f"q{q}")
        for q in range(1, SHADES + 1)
    ]
    first = f"the first {K} clients" if len(found["names"]) > K or len(found["since"]) > K else f"{K} clients"
    parts += [text(left, 12, f"{first}: who receives →", "axis"), text(left - 8, top + 10, "whose ↓", "axis", "end")]
    words = f"{100 * found['share']:.1f} % of pairs; dark: in the first rounds, light: late, empty: never"
    parts.append(text(left, top + K * cell + 18, words if width == WIDE else f"{100 * found['share']:.1f} % of pairs"))
    return svg(width, top + K * cell + 28, f"Exposure: {words}", parts)


def pairs(found: dict[str, Any], *, width: int = WIDE) -> str:
    """Scores in percent of the model of one site (down) on the test rows of another (across)."""
    names = found["names"]
    trained = [(n, row) for n, row in zip(names, found["score"]) if any(v is not None for v in row)]
    if not trained:
        return ""
    K, left, top = len(names), 96.0, 42.0
    w, h = min(92.0, (width - left - 8) / K), 30.0
    parts = [text(left, 12, "tested at →", "axis"), text(left - 10, top - 8, "trained at ↓", "axis", "end")]
    parts += [
        text(left + (j + 0.5) * w, top - 8, shorten(n, max(3, int(w // 8))), at="middle") for j, n in enumerate(names)
    ]
    for i, (name, row) in enumerate(trained):
        parts.append(text(left - 10, top + (i + 0.6) * h, shorten(name, 12), at="end"))
        for j, value in enumerate(row):
            if value is None:
                continue
            q = max(1, int(np.ceil(SHADES * value)))
            parts.append(rects([(left + j * w, top + i * h, w - 2, h - 2)], f"q{q}"))
            if w >= 27:
                on = "on-dark" if q > 4 else "on-light"
                at = left + (j + 0.5) * w - 1
                parts.append(text(at, top + (i + 0.5) * h + 3, f"{100 * value:.1f}", f"count {on}", "middle"))
    return svg(width, top + len(trained) * h + 8, f"Local models of {K} sites at each other, in percent", parts)


def sheet(found: dict[str, Any], classes: Sequence[str], *, width: int = WIDE) -> str:
    """Inputs that clients receive of others, a row a class, as one picture."""
    shown, left = found["classes"], 110.0
    names = [str(classes[c]) if c < len(classes) else str(c) for c in shown]
    cell = min(44.0, (width - left) / found["columns"])
    parts = [text(left - 10, (i + 0.6) * cell, shorten(name, 13), at="end") for i, name in enumerate(names)]
    size = f'x="{left}" y="0" width="{found["columns"] * cell:.1f}" height="{len(shown) * cell:.1f}"'
    whole = f'{size} preserveAspectRatio="none" style="image-rendering:pixelated"'
    parts.append(f'<image {whole} href="data:image/png;base64,{escape(found["png"])}"/>')
    return svg(width, len(shown) * cell + 4, f"Inputs received of others, of {len(shown)} classes", parts)


def scatter(found: dict[str, Any], *, width: int = WIDE) -> str:
    """Test features in the plane, coloured by client: under local models, and under the global one."""
    panels = [(kind, found[kind]) for kind in ("local", "global") if kind in found]
    if not panels:
        return ""
    beside = width == WIDE and len(panels) > 1
    side = (width - 24) / 2 if beside else min(float(width), 440.0)
    clients = list(dict.fromkeys(panels[0][1]["client"]))
    hue = {k: i % HUES for i, k in enumerate(clients)}
    parts, x, y = [], 0.0, 14.0
    for k in clients:  # the legend
        name = shorten(str(found["names"][k]) if k < len(found["names"]) else str(k), 16)
        if x + 24 + 7 * len(name) > width:
            x, y = 0.0, y + 18
        parts.append(
            f'<circle class="stop m{hue[k]}" cx="{x + 6:.1f}" cy="{y - 4:.1f}" r="4"/>' + text(x + 15, y, name)
        )
        x += 30 + 7 * len(name)
    top = y + 26
    for i, (kind, panel) in enumerate(panels):
        at_x, at_y = (i * (side + 24), top) if beside else (0.0, top + i * (side + 34))
        title = "local models, after their last local training" if kind == "local" else "the global model"
        parts.append(text(at_x, at_y - 6, title, "label"))
        parts.append(f'<rect class="empty" x="{at_x:.1f}" y="{at_y:.1f}" width="{side:.1f}" height="{side:.1f}"/>')
        parts += _cloud(panel, hue, at_x, at_y, side)
    down = top + (side if beside or len(panels) == 1 else 2 * side + 34)
    return svg(width, down + 4, f"Test features of {len(clients)} clients in the plane (t-SNE)", parts)


def _cloud(panel: dict[str, Any], hue: dict[int, int], left: float, top: float, side: float) -> list[str]:
    """A path of dots a client; one scale for both directions."""
    xy = np.array(panel["xy"], dtype=float).reshape(-1, 2)
    low, span = xy.min(0), float(np.ptp(xy, axis=0).max()) or 1.0
    placed = (xy - low) / span * (side - 20) + 10
    owner = np.array(panel["client"])
    found = []
    for k, h in hue.items():
        dots = "".join(f"M{left + a:.1f} {top + b:.1f}h0" for a, b in placed[owner == k])
        found.append(f'<path class="dots many m{h}" d="{dots}"/>')
    return found
