"""The score of each client by name, with its number of test samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

from unskew.data.samples.reading_notes import abbreviate
from unskew.report.analysis.numbers import capitalise, with_unit
from unskew.report.sections import Context, Section, client_scores, render, run_with_same_clients
from unskew.scores import kind

ORDER = 32
MOST_CLIENTS = 50
"""The most clients in a table; pictures show more."""
MOST_NAMES = 10


def build(context: Context) -> Section | None:
    """A row per client and a column per method for the first seed; None without scores of named clients or
    without their numbers of samples."""
    sizes = context.first.federation.get("sizes", {}).get("test", [])
    names = context.first.federation.get("names", [])
    methods = {
        method: run
        for method, group in context.methods.items()
        if (run := run_with_same_clients(context, group))
    }
    scores = {method: client_scores(run) for method, run in methods.items()}
    if not 2 <= len(names) <= MOST_CLIENTS or not any(scores.values()) or not any(sizes):
        return None
    rows = [
        (
            name,
            f"{size:,}",
            [
                with_unit(scores[method].get(k, math.nan), context.metric).removesuffix(" %")
                for method in scores
            ],
        )
        for k, (name, size) in enumerate(zip(names, sizes))
        if size
    ]
    html = render("sites.html.j2", methods=list(scores), rows=rows, score=context.score)
    seed = f" Seed {context.first.seed}." if context.seeds > 1 else ""
    note = (
        f"{_measured(context)} on the client's own test samples after the last round, with the model that the"
        f" client would use.{seed} A score on few samples is uncertain{_example(context)}."
    )
    return Section("Client by client", "sites", html, note=note + _absent(names, sizes), link="By name")


def _absent(names: Sequence[str], sizes: Sequence[int]) -> str:
    """A sentence, after a space, on the clients that have no row; "" if all have one."""
    absent = [name for name, size in zip(names, sizes) if not size]
    if not absent:
        return ""
    have = "has" if len(absent) == 1 else "have"
    return (
        f" {len(absent)} of {len(names)} clients {have} no test samples and no row:"
        f" {abbreviate(absent, MOST_NAMES)}."
    )


def _measured(context: Context) -> str:
    return f"{capitalise(context.score)} in %" if kind(context.metric).share else capitalise(context.score)


def _example(context: Context) -> str:
    return ": with 25 of them, 80 % may as well be 64 or 96 %" if kind(context.metric).share else ""
