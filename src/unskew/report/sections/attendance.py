"""How many clients answered in each round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unskew.report.analysis.runs import Attendance, RunData
from unskew.report.figures.curves import curves
from unskew.report.figures.svg import Line
from unskew.report.sections import Context, Section, figure

ORDER = 70


def build(context: Context) -> Section | None:
    """The first competing run's attendance; None if no round was recorded."""
    run = context.first
    if not run.attendance:
        return None
    html = figure(picture(run.attendance, run.federation.get("clients", 0)))
    lead = sentence(run, same=_alike(context))
    return Section("How many clients answered", "attendance", html, lead=lead, link="Attendance")


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


def picture(rounds: Sequence[Attendance], clients: int) -> str:
    """The numbers of clients that each round asked and whose replies were used; "" if all always answered."""
    if not rounds or all(len(r.asked) == len(r.answered) == clients for r in rounds):
        return ""
    dropped = any(r.came > len(r.answered) for r in rounds)
    counts = {
        "asked": [len(r.asked) for r in rounds],
        "reply used" if dropped else "answered": [len(r.answered) for r in rounds],
    }
    t, no_band = np.array([r.t for r in rounds]), np.zeros(len(rounds))
    lines = [
        Line(name, colour, t, np.array(values, float), no_band, share=False)
        for (name, values), colour in zip(counts.items(), ("ref", "map"))
    ]
    return curves(lines, "round", f"clients, of {clients}")
