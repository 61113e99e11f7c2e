"""The bytes that a score costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from markupsafe import Markup

from unskew.report.analysis.numbers import capitalise, size, with_unit
from unskew.report.analysis.runs import RunData
from unskew.report.analysis.stats import bytes_to, mean10
from unskew.report.figures.curves import curves
from unskew.report.figures.method_rows import TargetCost, target_cost
from unskew.report.figures.svg import WIDE, Line
from unskew.report.sections import Context, Section, figure
from unskew.scores import kind

ORDER = 40


def build(context: Context) -> Section | None:
    """The global score against bytes, and bytes until the target; None if nothing was sent or scored."""
    against_bytes = figure(partial(_against_bytes, context))
    if not against_bytes:
        return None
    until = figure(partial(_until_target, context))
    heading = (
        Markup("<h3>Bytes until {}</h3>").format(with_unit(context.target, context.metric))
        if until
        else Markup()
    )
    lead = (
        "Bytes are everything that clients send and receive: weights and shares, of all clients, both ways."
    )
    title = f"{capitalise(context.score)} against bytes sent"
    return Section(title, "bytes", against_bytes + heading + until, lead=lead, link="Bytes")


def _against_bytes(context: Context, *, width: int) -> str:
    """Score and bytes are both means over seeds at equal rounds."""
    lines = []
    for method, group in context.competing.items():
        if line := context.line(method, "global"):
            sent = np.mean([_bytes_until(r, line.x) for r in group], axis=0)
            lines.append(_over(line, sent))
    x_label = "bytes of all clients so far, both ways" if width == WIDE else "bytes, both ways"
    y_label = kind(context.metric).of(f"global {context.score}")
    return curves(lines, f"{x_label} (log scale)", y_label, width=width, log_x=True, unit=size)


def _over(line: Line, sent: np.ndarray) -> Line:
    """The line over bytes instead of rounds, without the rounds before anything was sent."""
    some = sent > 0
    return replace(line, x=sent[some], y=line.y[some], band=line.band[some])


def _bytes_until(run: RunData, rounds: np.ndarray) -> np.ndarray:
    """[T] bytes of all clients up to and including each of these rounds."""
    sent_in, total = run.bytes_by_round()
    if not len(sent_in):
        return np.zeros(len(rounds))
    return np.concatenate([[0.0], total])[np.searchsorted(sent_in, rounds, side="right")]


def _until_target(context: Context, *, width: int) -> str:
    rows = [
        _target_cost(method, context.colours[method], group, context.target)
        for method, group in context.competing.items()
        if not np.isnan(mean10(group[0]))
    ]
    return target_cost(rows, context.target, context.metric, width=width)


def _target_cost(method: str, colour: str, group: Sequence[RunData], target: float) -> TargetCost:
    needed = {r.seed: b for r in group if not np.isnan(b := bytes_to(r, target))}
    seeds = list(needed) if len(group) > 1 else []
    return TargetCost(method, colour, list(needed.values()), len(group), seeds)
