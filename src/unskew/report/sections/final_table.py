"""The final table: the scores of all methods, the best one, and the certainty of its lead."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unskew.report.analysis import results_table
from unskew.report.analysis.number_formats import MISSING, digits, with_unit
from unskew.report.analysis.results_table import note
from unskew.report.analysis.runs import EVALUATED
from unskew.report.analysis.stats import Score
from unskew.report.analysis.summary import MethodSummary, ScopedScore
from unskew.report.sections import Context, Section, render
from unskew.scores import kind

ORDER = 10
EXTRA_COLUMNS: tuple[tuple[str, Callable[[MethodSummary], Score]], ...] = (
    ("macro-F1", lambda s: s.macro_f1),
    ("worst class", lambda s: s.worst_class),
    ("Dice of both classes", lambda s: s.dice_both),
    ("MAE", lambda s: s.mae),
    ("R²", lambda s: s.r2),
    ("spread over clients", lambda s: s.spread),
    ("stability", lambda s: s.stability),
)
"""The columns of the collapsed second table."""
UNITS = {"MAE": "mae", "R²": "r2"}
"""The scores of columns in other units than the main score."""


def build(context: Context) -> Section:
    """The table of all methods, a second table with more numbers, and all numbers as CSV."""
    summaries = context.summaries
    several = len(summaries) > 1
    columns, unit = results_table.headings(summaries), results_table.unit_of(summaries)
    shown = len(columns) if several else len(columns) - 1  # one method alone has nothing to be compared with
    html = render(
        "final_table.html.j2",
        rows=[
            (s, _class(s, several), results_table.cells(s)[:shown], context.colours[s.method])
            for s in summaries
        ],
        columns=columns[:shown],
        note=note(summaries),
        target=_target(context),
        more=_extra_columns(summaries),
        noun=context.score,
        units="All in %, except rounds." if kind(context.metric).share else f"All {unit}; R² has none.",
        files={"table.csv": results_table.as_csv(summaries), "table.tex": results_table.latex(summaries)},
    )
    return Section("Methods compared" if several else "Scores", "table", html, link="Table")


def _class(summary: MethodSummary, several: bool) -> str:
    if summary.leads and several:
        return "leads"
    return "reference" if summary.reference else ""


def _target(context: Context) -> str:
    """A sentence on the column of bytes until the target."""
    if context.target != context.target:
        return ""
    chosen = "" if context.target_given else ", 95 % of the best final score"
    if not context.target_given and kind(context.metric).lower:
        chosen = ", of which the best final score is 95 %"
    score = f"{with_unit(context.target, context.metric)} global {context.score}"
    return f"Target: {score}{chosen}. (k/n): only k of n seeds reached it."


def _extra_columns(summaries: Sequence[MethodSummary]) -> list[tuple[str, list[str]]]:
    """(heading, value of each method) of the columns of the second table that have values."""
    columns = [
        (title, [digits(score(s), UNITS.get(title, s.metric)) for s in summaries])
        for title, score in EXTRA_COLUMNS
        if any(score(s).n for s in summaries)
    ]
    if any(s.rounds_to.n and not s.reference for s in summaries):
        target = with_unit(summaries[0].target, summaries[0].metric)
        columns.append((f"rounds to {target}", [_rounds(s) for s in summaries]))
    for metric in dict.fromkeys(metric for s in summaries for metric in s.further):
        for scope in EVALUATED:
            scoped = [s.further.get(metric, {}).get(scope) for s in summaries]
            if any(scoped):
                columns.append((_heading(metric, scope), [_scoped(one, metric) for one in scoped]))
    return columns


def _heading(metric: str, scope: str) -> str:
    which = kind(metric)
    return f"{which.of(which.title)}{' (lower is better)' if which.lower else ''}, {scope}"


def _scoped(scored: ScopedScore | None, metric: str) -> str:
    """Mean and deviation over seeds; for clients also the number at which the metric is defined."""
    if scored is None:
        return MISSING
    text = digits(scored.score, metric)
    return f"{text} ({scored.defined}/{scored.clients})" if scored.clients else text


def _rounds(summary: MethodSummary) -> str:
    """Rounds until the target, with the share of seeds that reached it in brackets, unless all did."""
    rounds = summary.rounds_to
    if summary.reference or not rounds.n:
        return MISSING
    mean = f"{rounds.mean:.1f} ± {rounds.std:.1f}" if rounds.n > 1 else f"{rounds.mean:.0f}"
    return mean + (f" ({rounds.n}/{summary.n})" if rounds.n < summary.n else "")
