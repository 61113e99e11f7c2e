"""Which clients answered in which round."""

from __future__ import annotations

from functools import partial

from unskew.report.context import Context
from unskew.report.figures.attendance import attendance
from unskew.report.render import figure
from unskew.report.runs import RunData
from unskew.report.section import Section

ORDER = 70


def build(context: Context) -> Section | None:
    """The first competing run's attendance; None if no round was recorded."""
    run = context.first
    if not run.attendance:
        return None
    html = figure(partial(attendance, run.attendance, run.federation.get("clients", 0)))
    lead = sentence(run, several=len(context.methods) > 1)
    return Section("Who answered when", "attendance", html, lead=lead, link="Attendance")


def sentence(run: RunData, several: bool) -> str:
    """The attendance of a run with at least one recorded round, in words. several: whether other methods are compared."""
    rounds = run.attendance
    asked, answered = sum(len(r.asked) for r in rounds), sum(len(r.answered) for r in rounds)
    if asked == answered:
        everybody = asked == len(rounds) * run.federation.get("clients", 0)
        who = "every client was asked and answered" if everybody else "all clients that were asked answered"
        return f"In every round {who}."
    rule = run.config.get("availability")
    why = f" (availability {rule}, seed {run.seed})" if rule else ""
    same = " The same clients are absent for every method." if several else ""
    return f"{100 * (1 - answered / max(asked, 1)):.0f} % of the requests went unanswered{why}.{same}"
