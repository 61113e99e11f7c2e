"""The score over rounds for each scope."""

from __future__ import annotations

from markupsafe import Markup

from unskew.report.analysis.numbers import capitalise, noun
from unskew.report.figures.curves import curves
from unskew.report.sections import Context, Scope, Section, render, scopes
from unskew.scores import kind

ORDER = 20


def build(context: Context) -> Section:
    """A tab per scope with a curve per method."""
    title = f"{capitalise(context.score)} over rounds"
    panels = [panel for scope in scopes(context.first.federation) if (panel := _panel(context, scope))]
    if not panels:
        return Section(title, "rounds", Markup(), lead="No round has been evaluated yet.", link="Rounds")
    seeds = context.seeds
    note = f"Lines are means over {seeds} seeds, bands one standard deviation." if seeds > 1 else "One seed."
    if any(len({r.rounds for r in group}) > 1 for group in context.methods.values()):
        note += " Where a method's seeds ended in different rounds, its line ends with the first of them."
    return Section(
        title, "rounds", render("tabs.html.j2", group="scope", panels=panels), note=note, link="Rounds"
    )


def _panel(context: Context, scope: Scope) -> tuple[str, str, Markup] | None:
    """(title, description, picture); None without evaluated rounds in this scope."""
    lines = [line for m in context.methods if (line := context.line(m, scope.key, scope.metric))]
    lines = [line for line in lines if len(line.x) > 1 or line.x[0] > 0]
    if not lines:
        return None
    score = noun(context.runs[0].metric)
    label = kind(context.metric).of(score) + (" (mean over clients)" if scope.metric else "")
    meaning = f"{scope.meaning}; mean over clients." if scope.metric else f"{scope.meaning}."
    return scope.title, meaning, Markup(curves(lines, "round", label))
