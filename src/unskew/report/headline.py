"""The head of a report: the result in one sentence, the key numbers, and what to know before believing them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from unskew.report import comparable, notes
from unskew.report.context import Context
from unskew.report.figures.svg import shorten
from unskew.report.numbers import digits, one, p_value, plural, size
from unskew.report.runs import RunData
from unskew.report.summary import Gap
from unskew.report.terms import span
from unskew.scores import kind, significant

AS_ASKED = ("E320", "E323", "E325", "E327")
"""Codes of events that happened to no reply and no round: a budget or patience that ended the run, and cautions."""


def result(context: Context) -> str:
    """One sentence, without its full stop: which method leads, by how much, and whether the seeds can tell."""
    run = context.first
    where = _where(run)
    leader = next((s for s in context.summaries if s.leads), None)
    if leader is None:
        return f"{context.summaries[0].method} {where}: without a global {context.score}"
    which = kind(context.metric)
    unit = which.unit.replace(" ", "\u00a0")
    score = f"{leader.method} reaches {digits(leader.final, context.metric)}{unit} global {context.score}"
    taken = [r.rounds for r in context.methods[leader.method]]
    where = f"after {span(taken)} round{'s' if max(taken) != 1 else ''} {where}"
    rivals = [s for s in context.summaries if not s.leads and not s.reference and s.final.n]
    if not rivals:
        return f"{score} {where}"
    second = max(rivals, key=lambda s: which.ahead(s.final.mean, 0.0))
    gap = which.ahead(leader.final.mean, second.final.mean)
    by = f"{100 * gap:.1f} points ahead of" if which.share else f"{significant(gap, 3)} better than"
    ahead = f"{by} {second.method}"
    return f"{score} {where}, {ahead}{_certainty(second.gap)}"


def _where(run: RunData) -> str:
    skew = run.federation.get("skew") or run.config.get("skew", "")
    return f"on {run.federation.get('name') or run.config.get('data', 'its data')}" + (f" ({skew})" if skew else "")


def _certainty(second: Gap | None) -> str:
    """Whether the seeds can tell the leader from the second."""
    if second is None or not second.seeds:
        return "; no seed of one is a seed of the other, so they cannot be paired"
    if second.seeds == 1:
        return "; one seed cannot tell whether this would happen again"
    if math.isnan(second.p):
        return f" (in {second.lost} of {second.seeds} seeds)"
    tie = f"{second.seeds} seeds cannot tell them apart" if second.p >= 0.05 else f"over {second.seeds} seeds"
    return f" ({tie}, {p_value(second.p)})"


def cards(context: Context) -> list[tuple[str, str]]:
    """The key numbers: (value, what it is)."""
    run, federation = context.first, context.first.federation
    lead = next((s for s in context.summaries if s.leads), context.summaries[0])
    final = one(lead.final.mean, context.metric).replace(" ", "\u00a0")
    numbers = [(final, f"global {context.score}, {shorten(lead.method, 26)}")]
    if lead.worst.n:
        numbers.append((one(lead.worst.mean, context.metric), "at its worst client"))
    numbers.append((size(lead.up + lead.down), "sent, both ways, all clients"))
    if federation:
        numbers.append((f"{federation['clients']:,}", "clients"))
        numbers.append((f"{np.median(federation['sizes']['train'] or [0]):,.0f}", "samples per client (median)"))
    if run.attendance:
        answered = float(np.mean([r.came for r in run.attendance]))
        asked = float(np.mean([len(r.asked) for r in run.attendance]))
        numbers.append((f"{significant(answered, 3)} of {significant(asked, 3)}", "clients answer a round"))
    numbers.append(
        (span([r.planned for group in context.competing.values() for r in group] or [run.planned]), "rounds")
    )
    numbers.append((str(context.seeds), "seeds" if context.seeds != 1 else "seed"))
    return numbers


def warnings(context: Context) -> list[str]:
    """Sentences on what makes the numbers doubtful."""
    runs = context.runs
    sentences = [*altered(runs), *_unfinished(runs), *comparable.doubts(context)]
    sentences += [*notes.doubtful(context.summaries), *notes.dropped(context.summaries)]
    codes = [str(e.get("code", "")) for r in runs for e in r.events]
    events = sum(code.startswith("E3") and code not in AS_ASKED for code in codes)
    if events:
        listed = "is listed" if events == 1 else "are listed"
        sentences.append(f"{plural(events, 'event')} such as a dropped reply or a skipped round {listed} at the end.")
    return sentences


def altered(runs: Sequence[RunData]) -> list[str]:
    """A sentence for each record that has changed since its run wrote it."""
    return [
        f"{run.path}: {name} is missing or not as the run wrote it, so these figures may be wrong; copy the folder again."
        for run in runs
        for name in run.altered
    ]


def _unfinished(runs: Sequence[RunData]) -> list[str]:
    short = [r for r in runs if not r.finished]
    if not short:
        return []
    named = ", ".join(f"{r.method} seed {r.seed} (round {r.rounds} of {r.planned})" for r in short[:4])
    more = " …" if len(short) > 4 else ""
    return [f"Not finished ({len(short)} of {plural(len(runs), 'run')}): {named}{more}."]
