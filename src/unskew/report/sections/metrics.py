"""The requested metrics besides the main score (`metrics: auroc`), by scope, and their samples."""

from __future__ import annotations

from unskew.report.analysis.numbers import MISSING, digits
from unskew.report.analysis.runs import EVALUATED
from unskew.report.analysis.stats import ranks_by_last_round
from unskew.report.analysis.summary import ScopedScore, requested_metrics
from unskew.report.sections import Context, Section, render
from unskew.scores import kind

ORDER = 12
LEAD = (
    "global: computed once over all test rows together. At clients: computed on each client's own test rows,"
    " and then the mean over those clients where it is defined; k/n says how many of those with test rows"
    " they were in the last round."
)
NOT_POOLED = (
    "No global value where nobody has all answers in one place: over a network without a test set at the"
    " server, and where clients keep weights of their own. A mean over sites would be another quantity."
)


def build(context: Context) -> Section | None:
    """A row for each metric and method; None without requested metrics."""
    by_method = {s.method: s.further for s in context.summaries}
    rows = [(metric, method) for metric in requested_metrics(context.runs) for method in context.methods]
    table = [
        (
            _title(metric),
            method,
            context.colours[method],
            [_cell(by_method[method].get(metric, {}).get(scope), metric) for scope in EVALUATED],
        )
        for metric, method in rows
    ]
    if not table:
        return None
    html = render("metrics.html.j2", rows=table, scopes=EVALUATED)
    lacking = any(cells[0] == MISSING and cells[1] != MISSING for *_, cells in table)
    over = "of the last round" if ranks_by_last_round(context.runs) else "means over the last ten rounds"
    note = (
        f"All scores are {over}. A metric that is undefined, such as AUROC with one class alone, is left out,"
        " never 0."
    )
    return Section(
        "Further metrics",
        "metrics",
        html,
        lead=LEAD,
        note=f"{note} {NOT_POOLED}" if lacking else note,
        link="Metrics",
    )


def _title(metric: str) -> str:
    which = kind(metric)
    return which.of(which.title) + (" (lower is better)" if which.lower else "")


def _cell(of: ScopedScore | None, metric: str) -> str:
    """Mean and deviation over seeds; for clients also the number at which the metric is defined."""
    if of is None:
        return MISSING
    text = digits(of.score, metric)
    return f"{text} ({of.defined}/{of.clients})" if of.clients else text
