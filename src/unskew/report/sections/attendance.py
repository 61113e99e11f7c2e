"""The clients that answered in each round."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from unskew.report.analysis.numbers import plural
from unskew.report.analysis.runs import Attendance, RunData
from unskew.report.figures.svg import WIDTH, Scale, rects, step_of, svg, text
from unskew.report.sections import Context, Section, figure

ORDER = 70


def build(context: Context) -> Section | None:
    """The first competing run's attendance; None if no round was recorded."""
    run = context.first
    if not run.attendance:
        return None
    html = figure(picture(run.attendance, run.federation.get("clients", 0)))
    lead = sentence(run, same=_alike(context))
    return Section("Who answered when", "attendance", html, lead=lead, link="Attendance")


def sentence(run: RunData, same: bool) -> str:
    """The attendance of a run with recorded rounds, in words. same: whether all methods have equal
    attendance."""
    rounds = run.attendance
    asked, came, used = (
        sum(counts) for counts in zip(*((len(r.asked), r.came, len(r.answered)) for r in rounds))
    )
    dropped = (
        f" {_percent(came - used, came)} % of the replies that came were dropped." if used < came else ""
    )
    if asked == came:
        everybody = asked == len(rounds) * run.federation.get("clients", 0)
        who = "every client was asked and answered" if everybody else "all clients that were asked answered"
        return f"In every round {who}.{dropped}"
    rule = run.config.get("availability")
    why = f" (availability {rule}, seed {run.seed})" if rule else ""
    alike = " The same clients are absent for every method." if same else ""
    return f"{_percent(asked - came, asked)} % of the requests went unanswered{why}.{alike}{dropped}"


def _alike(context: Context) -> bool:
    """Whether all methods have a run of the first seed with equal lists of asked and answering clients."""
    first = context.first
    others = [group for method, group in context.competing.items() if method != first.method]
    there = [next((r for r in group if r.seed == first.seed), None) for group in others]
    return bool(there) and all(run is not None and run.attendance == first.attendance for run in there)


def _percent(part: int, whole: int) -> str:
    """The percent of a share: `25`; 0 and 100 only if it is exactly none or all."""
    percent = 100 * part / max(whole, 1)
    return (
        "Less than 1" if 0 < percent < 0.5 else "More than 99" if 99.5 <= percent < 100 else f"{percent:.0f}"
    )


MOST_CLIENTS = 60
"""The most clients with rows of their own; of more only the number per round is drawn."""
LEFT, TOP, BARS, ROW = 66, 26, 64, 7
"""Margins, the height of the bars, and that of a client's row."""


def picture(rounds: Sequence[Attendance], clients: int) -> str:
    """A bar per round (answered, absent) and, for few clients, a row per client; "" if all always answered.

    A client with a dropped reply counts as absent.
    """
    if not rounds or all(len(r.asked) == len(r.answered) == clients for r in rounds):
        return ""
    x = Scale(0, len(rounds), LEFT, WIDTH - 8, least=1)
    w = (WIDTH - 8 - LEFT) / len(rounds)
    asked, answered = np.array([(len(r.asked), len(r.answered)) for r in rounds]).T
    dropped = any(r.came > len(r.answered) for r in rounds)
    used, unused = (
        ("reply used", "asked, no reply used") if dropped else ("answered", "asked, did not answer")
    )
    parts, at = [], float(LEFT)
    for kind, words in (("answered", used), ("absent", unused)):
        parts.append(f'<rect class="{kind}" x="{at}" y="3" width="10" height="10" rx="2"/>')
        parts.append(text(at + 15, 12, words))
        at += 28 + 6.6 * len(words)
    parts += _stacked(asked, answered, x, w)
    y = TOP + BARS + 8
    if clients <= MOST_CLIENTS:
        parts += _grid(rounds, clients, x, y, w)
        parts += [text(LEFT - 8, y + 9, "client 0", anchor="end")]
        parts += [text(LEFT - 8, y + ROW * clients, f"client {clients - 1}", anchor="end")]
        y += ROW * clients + 4
    step = max(1, math.ceil(step_of(len(rounds), 10)))
    ticks = [(i, r.t) for i, r in enumerate(rounds) if r.t % step == 0]
    parts += [text(float(x(i)) + w / 2, y + 12, str(t), anchor="middle") for i, t in ticks]
    parts.append(text((LEFT + WIDTH) / 2, y + 34, "round", "axis", "middle"))
    did = "had a reply used in" if dropped else "answered"
    label = f"On average {answered.mean():.1f} of {plural(clients, 'client')} {did} a round"
    return svg(y + 42, f"{label}, {asked.mean():.1f} were asked", parts)


def _stacked(asked: np.ndarray, answered: np.ndarray, x: Scale, w: float) -> list[str]:
    """A stacked bar per round: the clients that answered, and on top those that were asked and did not."""
    most, gap = int(asked.max()) or 1, 1.0 if w > 4 else 0.0
    parts = []
    for kind, low, high in (("absent", answered, asked), ("answered", 0 * answered, answered)):
        tops, heights = TOP + BARS * (1 - high / most), BARS * (high - low) / most
        boxes = [(float(x(i)), y, w - gap, h) for i, (y, h) in enumerate(zip(tops, heights)) if h]
        parts.append(rects(boxes, kind))
    parts.append(text(LEFT - 8, TOP + 9, f"{most} asked", anchor="end"))
    return [*parts, text(LEFT - 8, TOP + BARS, "0", anchor="end")]


def _grid(rounds: Sequence[Attendance], clients: int, x: Scale, y: float, w: float) -> list[str]:
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
    return parts
