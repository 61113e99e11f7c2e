"""The score over rounds for each scope, and the global score against bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from markupsafe import Markup

from unskew.report.analysis.number_formats import capitalise, noun, size
from unskew.report.analysis.runs import RunData
from unskew.report.figures.curves import curves
from unskew.report.figures.svg import Line
from unskew.report.sections import Context, Scope, Section, render, scopes
from unskew.scores import kind

ORDER = 20
BYTES = "Everything that clients send and receive: weights and shares, of all clients, both ways."


def build(context: Context) -> Section:
    """A tab per scope with a curve per method, and one over bytes."""
    title = f"{capitalise(context.score)} over rounds"
    panels = [panel for scope in scopes(context.first.federation) if (panel := _panel(context, scope))]
    if not panels:
        return Section(title, "rounds", Markup(), lead="No round has been evaluated yet.", link="Rounds")
    if picture := _against_bytes(context):
        panels.append(("Against bytes", BYTES, Markup(picture)))
    seeds = context.seeds
    note = f"Lines are means over {seeds} seeds, bands one standard deviation." if seeds > 1 else "One seed."
    if any(len({r.rounds for r in group}) > 1 for group in context.methods.values()):
        note += " Where a method's seeds ended in different rounds, its line ends with the first of them."
    html = render("tabs.html.j2", group="scope", panels=panels)
    return Section(title, "rounds", html, note=note, link="Rounds")


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


def _against_bytes(context: Context) -> str:
    """Score and bytes are both means over seeds at equal rounds; "" if nothing was sent or scored."""
    lines = list[Line]()
    for method, group in context.competing.items():
        if line := context.line(method, "global"):
            sent = np.mean([_bytes_until(r, line.x) for r in group], axis=0)
            some = sent > 0  # without the rounds before anything was sent
            lines.append(replace(line, x=sent[some], y=line.y[some], band=line.band[some]))
    y_label = kind(context.metric).of(f"global {context.score}")
    x_label = "bytes of all clients so far, both ways (log scale)"
    return curves(lines, x_label, y_label, log_x=True, unit=size)


def _bytes_until(run: RunData, rounds: np.ndarray) -> np.ndarray:
    """[T] bytes of all clients up to and including each of these rounds."""
    sent_in, total = run.bytes_by_round()
    if not len(sent_in):
        return np.zeros(len(rounds))
    return np.concatenate([[0.0], total])[np.searchsorted(sent_in, rounds, side="right")]
