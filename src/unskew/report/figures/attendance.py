"""The clients that answered in each round."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from unskew.report.analysis.numbers import plural
from unskew.report.analysis.runs import Attendance
from unskew.report.figures.svg import NARROW, WIDE, Scale, rects, step_of, svg, text

MOST_CLIENTS = 60
"""The most clients with rows of their own; of more only the number per round is drawn."""
LEFT, TOP, BARS, ROW = 66, 26, 64, 7
"""Margins, the height of the bars, and that of a client's row."""


def attendance(rounds: Sequence[Attendance], clients: int, *, width: int = WIDE) -> str:
    """A bar per round (answered, absent) and, for few clients, a row per client; "" if all always answered.

    A client with a dropped reply counts as absent.
    """
    if not rounds or all(len(r.asked) == len(r.answered) == clients for r in rounds):
        return ""
    x = Scale(0, len(rounds), LEFT, width - 8, least=1)
    w = (width - 8 - LEFT) / len(rounds)
    dropped = any(r.came > len(r.answered) for r in rounds)
    parts = [_legend(LEFT, dropped), *_bars(rounds, x, w)]
    y = TOP + BARS + 8
    if clients <= MOST_CLIENTS:
        parts.append(_grid(rounds, clients, x, y, w))
        parts += [text(LEFT - 8, y + 9, "client 0", anchor="end")]
        parts += [text(LEFT - 8, y + ROW * clients, f"client {clients - 1}", anchor="end")]
        y += ROW * clients + 4
    step = max(1, math.ceil(step_of(len(rounds), 5 if width == NARROW else 10)))
    ticks = [(i, r.t) for i, r in enumerate(rounds) if r.t % step == 0]
    parts += [text(float(x(i)) + w / 2, y + 12, str(t), anchor="middle") for i, t in ticks]
    parts.append(text((LEFT + width) / 2, y + 34, "round", "axis", "middle"))
    asked, answered = (np.mean([len(c) for c in column]) for column in _columns(rounds))
    did = "had a reply used in" if dropped else "answered"
    label = f"On average {answered:.1f} of {plural(clients, 'client')} {did} a round, {asked:.1f} were asked"
    return svg(width, y + 42, label, parts)


def _columns(rounds: Sequence[Attendance]) -> tuple[list[Sequence[int]], list[Sequence[int]]]:
    """(asked, answered) of every round."""
    return [r.asked for r in rounds], [r.answered for r in rounds]


def _legend(left: float, dropped: bool) -> str:
    parts, x = [], float(left)
    used, unused = (
        ("reply used", "asked, no reply used") if dropped else ("answered", "asked, did not answer")
    )
    for kind, words in (("answered", used), ("absent", unused)):
        parts.append(
            f'<rect class="{kind}" x="{x}" y="3" width="10" height="10" rx="2"/>{text(x + 15, 12, words)}'
        )
        x += 28 + 6.6 * len(words)
    return "".join(parts)


def _bars(rounds: Sequence[Attendance], x: Scale, w: float) -> list[str]:
    """A stacked bar per round: the clients that answered, and on top those that were asked and did not."""
    asked, answered = (np.array([len(clients) for clients in column]) for column in _columns(rounds))
    most, gap = int(asked.max()) or 1, 1.0 if w > 4 else 0.0
    parts = []
    for kind, low, high in (("absent", answered, asked), ("answered", 0 * answered, answered)):
        tops, heights = TOP + BARS * (1 - high / most), BARS * (high - low) / most
        boxes = [(float(x(i)), y, w - gap, h) for i, (y, h) in enumerate(zip(tops, heights)) if h]
        parts.append(rects(boxes, kind))
    parts += [
        text(LEFT - 8, TOP + 9, f"{most} asked", anchor="end"),
        text(LEFT - 8, TOP + BARS, "0", anchor="end"),
    ]
    return parts


def _grid(rounds: Sequence[Attendance], clients: int, x: Scale, y: float, w: float) -> str:
    """A cell per client and round; consecutive rounds of one kind are one box."""
    state = np.zeros((clients, len(rounds)), dtype=int)
    for i, r in enumerate(rounds):
        state[[k for k in r.asked if k < clients], i] = 1
        state[[k for k in r.answered if k < clients], i] = 2
    parts = []
    for value, kind in ((1, "absent"), (2, "answered")):
        boxes = []
        for k in range(clients):
            edges = np.flatnonzero(np.diff(np.concatenate([[0], state[k] == value, [0]]))).reshape(-1, 2)
            boxes += [(float(x(a)), y + ROW * k, (b - a) * w - (0.6 if w > 3 else 0), 6) for a, b in edges]
        parts.append(rects(boxes, kind))
    return "".join(parts)
