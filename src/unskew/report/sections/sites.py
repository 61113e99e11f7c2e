"""The score of each client by name, with its number of test samples, and whether federating is worth it
there."""

from __future__ import annotations

import math
from collections.abc import Sequence

from unskew.data.samples.reading_notes import abbreviate
from unskew.report.analysis.numbers import capitalise, with_unit
from unskew.report.analysis.summary import SURE, best_at_clients
from unskew.report.sections import Context, Section, client_scores, render, run_with_same_clients
from unskew.round.run import LOCAL
from unskew.scores import kind

ORDER = 32
MOST_CLIENTS = 50
"""The most clients in a table; pictures show more."""
MOST_NAMES = 10
WORTH = (
    " Clear is a gain over training alone whose 95 % interval (Agresti and Caffo, 2000) leaves out 0; among"
    " many clients one in twenty may be called clear by chance."
)


def build(context: Context) -> Section | None:
    """A row per client and a column per method for the first seed; None without scores of named clients or
    without their numbers of samples."""
    sizes = context.first.federation.get("sizes", {}).get("test", [])
    names = context.first.federation.get("names", [])
    runs = {m: run for m, group in context.methods.items() if (run := run_with_same_clients(context, group))}
    scores = {method: client_scores(run) for method, run in runs.items()}
    if not 2 <= len(names) <= MOST_CLIENTS or not any(scores.values()) or not any(sizes):
        return None
    best = best_at_clients(context.summaries)
    pair = (best[0], LOCAL) if best and context.metric == "accuracy" else ("", "")
    federated, alone = (scores.get(method, {}) for method in pair)
    rows, verdicts = [], list[str]()
    for k, (name, n) in enumerate(zip(names, sizes)):
        if not n:
            continue
        cells = [with_unit(by.get(k, math.nan), context.metric).removesuffix(" %") for by in scores.values()]
        if k in federated and k in alone:
            verdicts.append(verdict(n, federated[k], alone[k]))
            cells += [f"{100 * (federated[k] - alone[k]):+.1f}", verdicts[-1]]
        rows.append((name, f"{n:,}", cells))
    heads = [*scores, *((f"{pair[0]} over {LOCAL}", "worth it") if verdicts else ())]
    html = render("sites.html.j2", heads=heads, rows=rows)
    seed = f" Seed {context.first.seed}." if context.seeds > 1 else ""
    note = (
        f"{_measured(context)} on the client's own test samples after the last round, with the model that the"
        f" client would use.{seed} A score on few samples is uncertain{_example(context)}."
        f"{WORTH if verdicts else ''}{_absent(names, sizes)}"
    )
    lead = _lead(pair[0], verdicts) if verdicts else ""
    return Section("Client by client", "sites", html, lead=lead, note=note, link="By name")


def verdict(n: int, federated: float, alone: float) -> str:
    """Whether the gain of accuracies in [0, 1] on n samples is clear by the interval of Agresti and Caffo
    (2000): "yes", "no" or "unclear".

    With one success and one failure added to each, |p - q| exceeds 1.96 sqrt((p(1-p) + q(1-q)) / (n+2)).
    """
    p, q = ((share * n + 1) / (n + 2) for share in (federated, alone))
    if abs(p - q) <= SURE * math.sqrt((p * (1 - p) + q * (1 - q)) / (n + 2)):
        return "unclear"
    return "yes" if p > q else "no"


def _lead(method: str, verdicts: Sequence[str]) -> str:
    better, worse, unclear = map(verdicts.count, ("yes", "no", "unclear"))
    return (
        f"With {method}, the best of these methods at the clients, federating is clearly better than training"
        f" alone at {better} of {len(verdicts)} clients and clearly worse at {worse}; at {unclear} the test"
        " samples are too few to say."
    )


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
