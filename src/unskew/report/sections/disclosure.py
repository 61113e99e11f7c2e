"""The shares that leave each client: their sizes, readers and protection."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from unskew.core.account import epsilon_text
from unskew.report.analysis.numbers import plural, size
from unskew.report.analysis.runs import RunData, Traffic
from unskew.report.sections import Context, Section, render
from unskew.round.run import REFERENCES

ORDER = 50
LEAD = Markup(
    "Taken from the ledger of each method’s first seed. If the server needs “their sum”, secure aggregation"
    " can hide what each client sends; if it needs “each one”, nothing can. “Only the sum of n or more” is"
    " said where secure aggregation was on: nobody saw a client’s own. “Samples” are those behind each"
    " number. Guarantee: <em>dp</em> is proven, <em>empirical</em> was measured, <em>none</em> is neither."
)
READS = {"each": "each one", "sum": "their sum"}
SAMPLES = {"class": "all of a class", "client": "all"}
GUARANTEES = ("dp", "none", "empirical")
"""Guarantees that have a colour."""


@dataclass(frozen=True)
class Item:
    """One line of the table, in words."""

    way: str
    share: str
    often: str
    reads: str
    kind: str
    samples: str
    guarantee: str
    colour: str
    shape: str = ""
    most: str = ""
    total: str = ""


def build(context: Context) -> Section:
    """The ledger by method and share, and the differential privacy of noisy releases."""
    ledger = []
    for method, group in context.methods.items():
        nothing = REFERENCES.get(str(group[0].config.get("method")), "Nothing has been sent yet.")
        ledger.append((method, items(group[0]), nothing))
    privacy = [
        (
            method,
            account["release"],
            [(epsilon_text(e["epsilon"]), e["reading"]) for e in account["epsilons"]],
        )
        for method, group in context.methods.items()
        for account in group[0].privacy.values()
    ]
    shaped = any(item.shape for _, lines, _ in ledger for item in lines)
    kinds = any(item.kind for _, lines, _ in ledger for item in lines)
    html = render("disclosure.html.j2", ledger=ledger, shaped=shaped, kinds=kinds, privacy=privacy)
    return Section("What leaves each client", "leaves", html, lead=LEAD, link="What leaves a client")


def items(run: RunData) -> list[Item]:
    """The shares that a run's clients send and receive, weights first; none for a reference."""
    if run.is_reference:
        return []
    ordered = sorted(run.traffic, key=lambda s: (s.way != "up", s.share != "w", s.share))
    sent = [item(s, run.rounds) for s in ordered if s.way == "up"]
    return [*sent, *_numbers(run), *(item(s, run.rounds) for s in ordered if s.way == "down")]


def _numbers(run: RunData) -> list[Item]:
    """The plain numbers that leave a client with its replies, which have no Share and no noise."""
    trained = {t for s in run.traffic if s.way == "up" for t in s.rounds.tolist()}
    scored = {
        t for (scope, _), (rounds, _) in run.metrics.items() if "@client" in scope for t in rounds.tolist()
    }
    summed = any(s.sum_of for s in run.traffic)
    rows = [
        ("number of samples", trained, "each one"),
        ("training loss", trained, "their sum" if summed else "each one"),
        ("scores on test samples", scored, "each one"),
    ]
    return [
        Item("sends", what, _often(len(rounds), run.rounds), reads, "statistics", "all", "none", "none")
        for what, rounds, reads in rows
        if trained and rounds
    ]


def item(traffic: Traffic, rounds: int) -> Item:
    """The line of a share of a run with so many rounds."""
    up = traffic.way == "up"
    guarantee = traffic.guarantee if up or traffic.guarantee == "dp" else ""
    return Item(
        way="sends" if up else "receives",
        share=traffic.name,
        shape=traffic.shape,
        most=size(traffic.most),
        often=_often(len(traffic.rounds), rounds),
        total=size(traffic.total),
        reads=_reads(traffic) if up else "",
        kind=traffic.kind if up else "",
        samples=SAMPLES.get(str(traffic.samples), str(traffic.samples)) if up else "",
        guarantee=guarantee,
        colour=guarantee if guarantee in GUARANTEES else "",
    )


def _often(moved: int, rounds: int) -> str:
    return "every round" if moved >= rounds else plural(moved, "round")


def _reads(traffic: Traffic) -> str:
    """How the server reads a share, in words."""
    if traffic.sum_of:
        return f"only the sum of {traffic.sum_of} or more"
    return READS.get(traffic.reads, traffic.reads)
