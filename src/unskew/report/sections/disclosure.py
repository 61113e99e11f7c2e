"""What leaves each client, who reads it, and what could be learned from it: by proof, or by attacks."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from unskew.attacks.registry import NOT_MEASURED, clear_disclosure, commands, readers
from unskew.core.privacy_account import epsilon_text, guarantee_text
from unskew.report.analysis import leakage
from unskew.report.analysis.leakage import Leakage, extremes, leakages, missing_attacks, strongest
from unskew.report.analysis.number_formats import MISSING, digits, plural, size
from unskew.report.analysis.runs import RunData, Traffic
from unskew.report.figures.measures import image_rows
from unskew.report.sections import Context, Section, figure, render
from unskew.round.run import REFERENCES
from unskew.scores import kind, significant

ORDER = 50
LEAD = (
    "Taken from the ledger of each method’s first seed. If the server needs “their sum”, secure aggregation"
    " can hide what each client sends, and without it the server receives that, too; “only the sum of n or"
    " more” is said where it was on. “Samples” are those behind each number. Guarantee: dp is proven,"
    " empirical was measured, none is neither. A figure without a command is a proof; one with a command was"
    " measured by an attack, which bounds from below what can be learned. “Not measured” by an attack means"
    " that it fits and was not made, not that it would find nothing."
)
NOTE = (
    "Attacks on single clients read each client’s own payload, as the server does here also where it needs"
    " the sum alone. A better attack may find more than these did."
)
READS = {"each": "each one", "sum": "their sum"}
SAMPLES = {"class": "all of a class", "client": "all"}
GUARANTEES = ("dp", "none", "empirical")
"""Guarantees that have a colour."""


@dataclass(frozen=True)
class Item:
    """One line of the table, in words. learned: (finding, command that measured it or "")."""

    way: str
    share: str
    often: str
    reads: str = ""
    kind: str = ""
    samples: str = ""
    guarantee: str = ""
    most: str = ""
    total: str = ""
    readers: str = ""
    learned: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    @property
    def colour(self) -> str:
        """The class of the guarantee's colour, or ""."""
        return self.guarantee if self.guarantee in GUARANTEES else ""


def build(context: Context) -> Section:
    """The payloads of each method's first seed, what attacks found, and what privacy costs."""
    runs = {method: group[0] for method, group in context.methods.items()}
    rows = leakages(context.competing, context.summaries)
    if len(rows) < 2 or not any(row.leaks or math.isfinite(row.epsilon) for row in rows):
        rows = []
    findings = [
        (method, name, finding)
        for method, run in runs.items()
        if not run.is_reference
        for name, finding in run.attacks.items()
    ]
    html = render(
        "disclosure.html.j2",
        methods=[(method, items(run), _nothing(run)) for method, run in runs.items()],
        costs=[(row, _score(row), leakage.cells(row), epsilon_text(row.epsilon)) for row in rows],
        noun=context.score,
        pictures=[picture for method, _, finding in findings for picture in _pictures(method, finding)],
        details=[(method, name, _rows(finding), finding) for method, name, finding in findings],
    )
    return Section(
        "What leaves each client, and what could be learned",
        "leaves",
        html,
        lead=LEAD,
        note=NOTE if findings else "",
        link="What leaves a client",
    )


def _nothing(run: RunData) -> str:
    return REFERENCES.get(str(run.config.get("method")), "Nothing has been sent yet.")


def items(run: RunData) -> list[Item]:
    """The shares that a run's clients send and receive, weights first; none for a reference."""
    if run.is_reference:
        return []
    ordered = sorted(run.traffic, key=lambda s: (s.way != "up", s.share != "w", s.share))
    sent = [_item(s, run) for s in ordered if s.way == "up"]
    return [*sent, *_numbers(run), *(_item(s, run) for s in ordered if s.way == "down")]


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
        Item("sends", what, _often(len(rounds), run), reads, "statistics", "all", "none")
        for what, rounds, reads in rows
        if trained and rounds
    ]


def _item(traffic: Traffic, run: RunData) -> Item:
    often = _often(len(traffic.rounds), run)
    most, total = size(traffic.most), size(traffic.total)
    if traffic.way != "up":
        guarantee = "dp" if traffic.guarantee == "dp" else ""
        return Item("receives", traffic.name, often, guarantee=guarantee, most=most, total=total)
    summed = f"only the sum of {traffic.sum_of} or more" if traffic.sum_of else ""
    return Item(
        "sends",
        traffic.name,
        often,
        reads=summed or READS.get(traffic.reads, traffic.reads),
        kind=traffic.kind,
        samples=SAMPLES.get(str(traffic.samples), str(traffic.samples)),
        guarantee=traffic.guarantee,
        readers=_readers(traffic, run),
        learned=_learned(traffic, run),
        most=most,
        total=total,
    )


def _often(moved: int, run: RunData) -> str:
    return "every round" if moved >= run.rounds else plural(moved, "round")


def _readers(traffic: Traffic, run: RunData) -> str:
    """The readers of a payload or of its results, in words."""
    down = [t for t in run.traffic if t.way == "down"]
    if traffic.share == "w":
        return readers(True, next((t.hands_on for t in down if t.hands_on), ""), traffic.sum_of)
    return readers(traffic.share.partition("/")[0] in {t.share for t in down}, sum_of=traffic.sum_of)


def _learned(traffic: Traffic, run: RunData) -> list[tuple[str, str]]:
    """Proofs, what is in clear, the findings of attacks, and the attacks that were not made."""
    plain = [(words, "")] if (words := clear_disclosure(traffic.kind, traffic.samples)) else []
    known = [*_proofs(traffic, run), *plain, *_attack_scores(traffic.share, run)]
    left = [] if plain else missing_attacks(traffic, [run])
    return [*known, _not_measured(traffic, run, left)] if left or not known else known


def _proofs(traffic: Traffic, run: RunData) -> list[tuple[str, str]]:
    """The releases of noise that protect this payload, each with its guarantee in all readings."""
    part = traffic.share.partition("/")[0]
    released = {t.share for t in run.traffic if t.way == "down" and t.guarantee == "dp"}
    proven = traffic.guarantee == "dp" or bool(released & {part, traffic.share})
    accounts = [account for name, account in run.privacy.items() if name == part or proven]
    return [
        (text, "")
        for account in accounts
        for text in (account["release"], *map(guarantee_text, account.get("epsilons", [])))
    ]


def _not_measured(traffic: Traffic, run: RunData, left: list[str]) -> tuple[str, str]:
    """The text for attacks that were not made, with their commands. left: their names."""
    words = " by ".join(filter(None, (NOT_MEASURED, ", ".join(left))))
    if traffic.sum_of:
        words += "; only sums were read here"
        words += ", so what can be attacked is the merged model" if left else ""
    path = shlex.quote(str(run.path))
    how = commands(left, path, "layout" in run.federation)
    if how and str(run.config.get("data", "")).startswith("("):  # they are at sites, or were given in Python
        return f"{words}; attacks need the samples, so simulate the same settings on data like them", ""
    return words, " or ".join(how)


def _attack_scores(share: str, run: RunData) -> list[tuple[str, str]]:
    """For each attack on a payload, the score that is furthest from its floor, and its extremes."""
    lines = []
    for name, finding in run.attacks.items():
        if best := strongest(finding["scores"], share):
            asked = f" ({finding['asks']})" if finding.get("asks") else ""  # older findings do not say
            further = [f"{s['metric']} {_number(s['value'])}" for s in extremes(finding["scores"], best)]
            value, low, high, floor = (_number(best[key]) for key in ("value", "low", "high", "floor"))
            score = f"{best['metric']} {value} [{low}, {high}] ({floor} without the payload), {best['of']}"
            lines.append(("; ".join([f"{name}{asked}: {score}", *further]), str(finding["command"])))
    return lines


def _number(value: float | None) -> str:
    return MISSING if value is None else significant(value, 3)


def _score(row: Leakage) -> str:
    """`90.2 % ± 0.8`, or `90.2 %` for one seed."""
    mean, _, std = digits(row.score, row.metric).partition(" ± ")
    return mean if mean == MISSING else mean + kind(row.metric).unit + (f" ± {std}" if std else "")


def _rows(finding: Mapping[str, Any]) -> list[list[str]]:
    """The cells of the table of an attack."""
    return [
        [
            *(str(s[name]) for name in ("payload", "of", "metric")),
            _number(s["value"]),
            f"{_number(s['low'])} to {_number(s['high'])}",
            *(_number(s[name]) for name in ("floor", "ceiling")),
            str(s["n"]),
        ]
        for s in finding["scores"]
    ]


def _pictures(method: str, finding: Mapping[str, Any]) -> list[tuple[str, Markup]]:
    """(title, picture) of the images of an attack on a method's run."""
    return [
        (
            f"{method}: {title}",
            figure(image_rows(sheet, sheet["rows"], "Samples and what was made of payloads")),
        )
        for title, sheet in finding.get("pictures", {}).get("images", {}).items()
    ]
