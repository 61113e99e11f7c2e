"""The cost of privacy: the score of each method against the success of attacks and against its epsilon."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from markupsafe import Markup

from unskew.core.account import epsilon_text
from unskew.report.analysis import leakage
from unskew.report.analysis.leakage import Interval, Leak, Leakage, leakages
from unskew.report.analysis.numbers import MISSING, capitalise, digits
from unskew.report.figures.curves import Axis, Point, scatter
from unskew.report.sections import Context, Section, figure, render
from unskew.scores import kind

ORDER = 54
LEAD = (
    "How much does a method tell for its score? Leakage is how far the attack that got furthest goes from"
    " what needs no payload (0 %) to what the raw samples would give (100 %). Methods are only comparable"
    " where the same attack got furthest."
)
NOTE = (
    "Of several scores of one attack the table has the one that reaches furthest. Intervals are of 95 %: over"
    " samples with one seed, over seeds with several. Attacks bound leakage from below, an epsilon bounds it"
    " from above."
)
GUARANTEED = (
    "Epsilon is that of every model of the run, against whoever gets it. The table says what it covers, and"
    " with which delta: an epsilon for one client and one for one sample do not compare."
)


def build(context: Context) -> Section | None:
    """The section; None for a single method, and without attacks or guarantees."""
    rows = leakages(context.competing, context.summaries)
    if len(rows) < 2 or not any(row.leaks or math.isfinite(row.epsilon) for row in rows):
        return None
    worst = [_point(context, row, row.worst) for row in rows]
    title = f"{capitalise(context.score)} against leakage"
    pictures = [(title, figure(partial(_against_leakage, context, worst)))]
    for attack in dict.fromkeys(leak.attack for row in rows for leak in row.leaks):
        points = [_point(context, row, _of(row, attack)) for row in rows]
        if sum(not math.isnan(p.x) for p in points) > 1:
            pictures.append((f"The same, {attack} alone", figure(partial(_against_leakage, context, points))))
    pictures.append(
        (f"{capitalise(context.score)} against epsilon", figure(partial(_against_epsilon, context, rows)))
    )
    html = render(
        "tradeoff.html.j2",
        pictures=[(title, picture) for title, picture in pictures if picture],
        rows=[(row, _score(row), leakage.cells(row), epsilon_text(row.epsilon)) for row in rows],
        noun=context.score,
        guaranteed=GUARANTEED,
    )
    return Section(
        "What privacy costs", "tradeoff", Markup(html), lead=LEAD, note=NOTE, link="What privacy costs"
    )


def _score(row: Leakage) -> str:
    """`90.2 % ± 0.8`, or `90.2 %` for one seed."""
    mean, _, std = digits(row.score, row.metric).partition(" ± ")
    return mean if mean == MISSING else mean + kind(row.metric).unit + (f" ± {std}" if std else "")


def _of(row: Leakage, attack: str) -> Leak | None:
    return max(
        (leak for leak in row.leaks if leak.attack == attack), key=lambda leak: leak.reach.mean, default=None
    )


def _point(context: Context, row: Leakage, leak: Leak | None) -> Point:
    """The point of a method in the picture of attacks; its x is NaN without an attack."""
    x = leak.reach if leak else Interval(math.nan, math.nan, math.nan)
    note = f"{100 * x.mean:.0f} %, {leak.attack}" if leak else ""
    colour = context.colours[row.method]
    return Point(row.method, colour, x.mean, x.low, x.high, row.score.mean, row.score.std, note)


def _against_leakage(context: Context, points: Sequence[Point], *, width: int) -> str:
    main = kind(context.metric)
    axis = Axis("leakage, %", lambda v: f"{100 * v:.0f}", share=main.share)
    return scatter(points, axis, main.of(f"global {context.score}"), width=width)


def _against_epsilon(context: Context, rows: Sequence[Leakage], *, width: int) -> str:
    points = [
        Point(
            row.method,
            context.colours[row.method],
            row.epsilon,
            row.epsilon,
            row.epsilon,
            row.score.mean,
            row.score.std,
        )
        for row in rows
    ]
    main = kind(context.metric)
    axis = Axis("epsilon (log scale)", lambda v: f"{v:.3g}", True, "none", main.share)
    return scatter(points, axis, main.of(f"global {context.score}"), width=width)
