"""The bytes that a score costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from unskew.report.analysis.numbers import capitalise, size
from unskew.report.analysis.runs import RunData
from unskew.report.figures.curves import curves
from unskew.report.figures.svg import Line
from unskew.report.sections import Context, Section, figure
from unskew.scores import kind

ORDER = 40


def build(context: Context) -> Section | None:
    """The global score against bytes; None if nothing was sent or scored."""
    against_bytes = figure(_against_bytes(context))
    if not against_bytes:
        return None
    lead = (
        "Bytes are everything that clients send and receive: weights and shares, of all clients, both ways."
    )
    title = f"{capitalise(context.score)} against bytes sent"
    return Section(title, "bytes", against_bytes, lead=lead, link="Bytes")


def _against_bytes(context: Context) -> str:
    """Score and bytes are both means over seeds at equal rounds."""
    lines = []
    for method, group in context.competing.items():
        if line := context.line(method, "global"):
            sent = np.mean([_bytes_until(r, line.x) for r in group], axis=0)
            lines.append(_over(line, sent))
    y_label = kind(context.metric).of(f"global {context.score}")
    x_label = "bytes of all clients so far, both ways (log scale)"
    return curves(lines, x_label, y_label, log_x=True, unit=size)


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
