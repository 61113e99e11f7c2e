"""Who answered when."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from unskew.report.numbers import plural
from unskew.report.svg import NARROW, WIDE, Scale, rects, step_of, svg, text


def attendance(rows: Sequence[tuple[int, Sequence[int], Sequence[int]]], clients: int, *, width: int = WIDE) -> str:
    """Who answered in which round: answered, asked but absent, not asked. Above 60 clients, counts per round alone."""
    if not rows or all(len(asked) == len(answered) == clients for _, asked, answered in rows):
        return ""
    left, top, tall, T = 66, 26, 64, len(rows)
    most = max(len(asked) for _, asked, _ in rows) or 1
    x = Scale(0, T, left, width - 8, least=1)
    w = (width - 8 - left) / T
    gap = 1.0 if w > 4 else 0.0
    asked, came = (np.array([len(r[i]) for r in rows]) for i in (1, 2))
    parts = [_attendance_legend(left)]
    for kind, low, high in (("absent", came, asked), ("answered", 0 * came, came)):
        tops, tails = top + tall * (1 - high / most), tall * (high - low) / most
        parts.append(rects([(float(x(i)), a, w - gap, h) for i, (a, h) in enumerate(zip(tops, tails)) if h], kind))
    parts += [text(left - 8, top + 9, f"{most} asked", at="end"), text(left - 8, top + tall, "0", at="end")]
    y = top + tall + 8
    if clients <= 60:
        parts.append(_grid(rows, clients, x, y, w))
        last = f"client {clients - 1}"
        parts += [text(left - 8, y + 9, "client 0", at="end"), text(left - 8, y + 7 * clients, last, at="end")]
        y += 7 * clients + 4
    step = max(1, math.ceil(step_of(T, 5 if width == NARROW else 10)))
    parts += [text(float(x(i)) + w / 2, y + 12, str(r[0]), at="middle") for i, r in enumerate(rows) if r[0] % step == 0]
    parts.append(text((left + width) / 2, y + 34, "round", "axis", "middle"))
    label = (
        f"On average {came.mean():.1f} of {plural(clients, 'client')} answered a round, {asked.mean():.1f} were asked"
    )
    return svg(width, y + 42, label, parts)


def _attendance_legend(left: float) -> str:
    parts, x = [], float(left)
    for kind, words in (("answered", "answered"), ("absent", "asked, did not answer")):
        parts.append(f'<rect class="{kind}" x="{x}" y="3" width="10" height="10" rx="2"/>{text(x + 15, 12, words)}')
        x += 28 + 6.6 * len(words)
    return "".join(parts)


def _grid(rows: Sequence[tuple[int, Sequence[int], Sequence[int]]], clients: int, x: Scale, y: float, w: float) -> str:
    """A cell per client and round; neighbouring rounds of one kind are one box."""
    state = np.zeros((clients, len(rows)), dtype=int)
    for i, (_, asked, answered) in enumerate(rows):
        state[[k for k in asked if k < clients], i] = 1
        state[[k for k in answered if k < clients], i] = 2
    found = []
    for value, kind in ((1, "absent"), (2, "answered")):
        boxes = []
        for k in range(clients):
            edges = np.flatnonzero(np.diff(np.concatenate([[0], state[k] == value, [0]])))
            boxes += [(float(x(a)), y + 7 * k, (b - a) * w - (0.6 if w > 3 else 0), 6) for a, b in edges.reshape(-1, 2)]
        found.append(rects(boxes, kind))
    return "".join(found)
