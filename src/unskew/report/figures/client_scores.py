"""The score of each client: a dot per client."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unskew.report.analysis.numbers import plural
from unskew.report.figures.svg import (
    NARROW,
    WIDE,
    Scale,
    data_attribute,
    ends_of,
    line,
    plain_number,
    score_range,
    shorten,
    svg,
    text,
    x_axis,
)
from unskew.scores import Kind, kind


@dataclass(frozen=True)
class Strip:
    """The clients of a method over all seeds: names and scores. colour: CSS classes. metric: the score."""

    name: str
    colour: str
    clients: Sequence[str]
    values: Sequence[float]
    metric: str = "accuracy"

    @property
    def kind(self) -> Kind:
        return kind(self.metric)


def client_scores(strips: Sequence[Strip], x_label: str, *, width: int = WIDE) -> str:
    """A row of dots per method, one per client; the bar is the mean, and the ring the worst client."""
    strips = [s for s in strips if len(s.values)]
    if not strips:
        return ""
    narrow = width == NARROW
    left, row, top, bottom = (12, 76, 4, 56) if narrow else (150, 64, 6, 58)
    height = top + bottom + row * len(strips)
    x = Scale(*_ends(strips), left + 8, width - 18)
    tick = (lambda v: f"{100 * v:.0f}") if strips[0].kind.share else plain_number
    parts = [x_axis(x, height - bottom + 8, top, x_label, tick, 5 if narrow else 10)]
    rows, names = [], list(dict.fromkeys(n for s in strips for n in s.clients))
    for i, s in enumerate(strips):
        middle = top + row * (i + 0.5) + (10 if narrow else 4)
        places = _swarm([float(v) for v in np.atleast_1d(x(np.array(s.values)))], row * 0.21)
        parts += [_label(s, left, middle, row, narrow), _dots(s, places, middle)]
        parts.append(_mean_and_worst(s, x, middle, row, width))
        rows.append({"n": s.name, "c": s.colour, "y": round(middle, 1), "d": _for_script(s, places, names)})
    words = "; ".join(
        f"{s.name}: mean {_value(s, float(np.mean(s.values)))}, worst {_value(s, s.kind.worst(s.values))}"
        for s in strips
    )
    unit = {} if strips[0].kind.share else {"u": ""}
    script = (
        data_attribute("dots", {"h": row, "k": names, "r": rows, **unit})
        if not narrow or len(names) <= 200
        else ""
    )
    return svg(width, height, f"Every client. {words}", parts, script)


def _ends(strips: Sequence[Strip]) -> tuple[float, float]:
    """The ends of the axis: at most 1 for shares; numbers begin at 0 unless all are far from it."""
    low, high = ends_of(v for s in strips for v in s.values)
    if strips[0].kind.share:
        return (0.0 if low < 0.5 else math.floor(low * 10 - 0.5) / 10), 1.0
    begin, end, _ = score_range(low, high, share=False)
    return begin, end


def _value(s: Strip, value: float) -> str:
    return f"{s.kind.digits(value)}{s.kind.unit}"


def _label(s: Strip, left: float, middle: float, row: float, narrow: bool) -> str:
    if narrow:
        return text(left, middle - row * 0.36, shorten(s.name, 30), "label")
    count = text(left - 14, middle + 15, plural(len(s.values), "dot"), "tick", "end")
    return text(left - 14, middle, shorten(s.name, 16), "label", "end") + count


def _swarm(x: Sequence[float], half: float) -> list[tuple[float, float]]:
    """(x, dy) of dots; overlapping dots are stacked around the row's middle, up to `half` away from it."""
    columns: dict[int, list[int]] = {}
    for i in np.argsort(x, kind="stable").tolist():
        columns.setdefault(round(x[i] / 5.0), []).append(i)
    places = [(0.0, 0.0)] * len(x)
    for members in columns.values():
        gap = min(5.4, 2 * half / max(1, len(members) - 1))
        for j, i in enumerate(members):
            places[i] = (x[i], (j // 2 + j % 2) * (1 if j % 2 else -1) * gap)
    return places


def _dots(s: Strip, places: Sequence[tuple[float, float]], middle: float) -> str:
    d = "".join(f"M{x:.1f} {middle + dy:.1f}h0" for x, dy in places)
    many = " many" if len(places) > 300 else ""
    return f'<path class="dots{many} {s.colour}" d="{d}"/>'


def _mean_and_worst(s: Strip, x: Scale, middle: float, row: float, width: float) -> str:
    mean, worst = float(np.mean(s.values)), s.kind.worst(s.values)
    low = list(s.values).index(worst)
    ring, bar = float(x(worst)), float(x(mean))
    equal = sum(abs(v - worst) <= 1e-9 for v in s.values)
    named = s.clients[low] if equal == 1 else plural(equal, "client")
    words = f"worst {_value(s, worst)}: {shorten(named, 22)}"
    left_of_ring = ring + 6.2 * len(words) > width
    place = ring + (6 if left_of_ring else -6)
    return "".join(
        [
            line(bar, middle - row * 0.32, bar, middle + row * 0.32, f"mean {s.colour}"),
            f'<circle class="ring {s.colour}" cx="{ring:.1f}" cy="{middle:.1f}" r="6"/>',
            text(place, middle + row * 0.43, words, "note", "end" if left_of_ring else ""),
            text(bar + 5, middle - row * 0.3, s.kind.digits(mean), "value"),
        ]
    )


def _for_script(s: Strip, places: Sequence[tuple[float, float]], names: Sequence[str]) -> list[list[float]]:
    """The data of the script's tooltip per dot: x, dy, index of the name, score (percent of a share)."""
    factor, places_after = (100, 1) if s.kind.share else (1, 6)
    indices = {n: i for i, n in enumerate(names)}
    dots = zip(places, s.clients, s.values)
    return [
        [round(x, 1), round(dy, 1), indices[name], round(factor * v, places_after)]
        for (x, dy), name, v in dots
        if math.isfinite(v)  # JSON has no other numbers
    ]
