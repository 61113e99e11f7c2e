"""The information in payloads: their readers, their protection, and the findings of attacks."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from unskew.attacks.payload_disclosure import NOT_MEASURED, ONE_INPUT, in_clear, readers
from unskew.core.account import epsilon_text, guarantee_text
from unskew.report.analysis import leakage
from unskew.report.analysis.leakage import Leakage, extremes, leakages, samples_of, strongest, unmade
from unskew.report.analysis.numbers import MISSING, digits
from unskew.report.analysis.runs import RunData, Traffic
from unskew.report.figures.curves import curves, roc
from unskew.report.figures.images import image_rows
from unskew.report.figures.svg import Line, numbered_colour
from unskew.report.sections import Context, Section, figure, render
from unskew.report.sections.disclosure import Item, item
from unskew.scores import kind, significant

ORDER = 52
LEAD = (
    "Who reads what, and what could be learned from it? Where the server needs “their sum”, it yet receives"
    " what each client sends, unless there is secure aggregation. A figure without a command is a proof; one"
    " with a command was measured by an attack, which bounds from below what can be learned. “Not measured”"
    " by an attack means that it fits and was not made, not that it would find nothing."
)

NOTE = (
    "Attacks on single clients read each client’s own payload, as the server does here also where it needs"
    " the sum alone. A better attack may find more than these did."
)


@dataclass(frozen=True)
class Payload:
    """A line of the table. learned: (finding, command that measured it or "")."""

    item: Item
    adversary: str
    learned: list[tuple[str, str]]


def build(context: Context) -> Section | None:
    """The table for the first seed of each method that sends anything, and the pictures of its attacks."""
    methods = [
        (m, group[0])
        for m, group in context.methods.items()
        if not group[0].is_reference and group[0].traffic
    ]
    if not methods:
        return None
    rows = leakages(context.competing, context.summaries)
    if len(rows) < 2 or not any(row.leaks or math.isfinite(row.epsilon) for row in rows):
        rows = []
    html = render(
        "leakage.html.j2",
        costs=[(row, _score(row), leakage.cells(row), epsilon_text(row.epsilon)) for row in rows],
        noun=context.score,
        methods=[(method, payloads(run)) for method, run in methods],
        pictures=[picture for method, run in methods for picture in _pictures(method, run)],
        details=[(method, name, _rows(f), f) for method, run in methods for name, f in run.attacks.items()],
    )
    measured = any(run.attacks for _, run in methods)
    return Section(
        "What could be learned",
        "learned",
        html,
        lead=LEAD,
        note=NOTE if measured else "",
        link="What could be learned",
    )


def _score(row: Leakage) -> str:
    """`90.2 % ± 0.8`, or `90.2 %` for one seed."""
    mean, _, std = digits(row.score, row.metric).partition(" ± ")
    return mean if mean == MISSING else mean + kind(row.metric).unit + (f" ± {std}" if std else "")


def payloads(run: RunData) -> list[Payload]:
    """The shares that the clients of a run send, weights first."""
    up = sorted((t for t in run.traffic if t.way == "up"), key=lambda t: (t.share != "w", t.share))
    return [Payload(item(t, run.rounds), _adversary(t, run), _learned(t, run)) for t in up]


def _adversary(traffic: Traffic, run: RunData) -> str:
    """The readers of a payload or of its results, in words."""
    down = [t for t in run.traffic if t.way == "down"]
    if traffic.share == "w":
        return readers(True, next((t.hands_on for t in down if t.hands_on), ""), traffic.sum_of)
    return readers(traffic.share.partition("/")[0] in {t.share for t in down}, sum_of=traffic.sum_of)


def _learned(traffic: Traffic, run: RunData) -> list[tuple[str, str]]:
    """Proofs, what is in clear, the findings of attacks, and the attacks that were not made."""
    plain = [(words, "")] if (words := in_clear(traffic.kind, traffic.samples)) else []
    known = [*_proofs(traffic, run), *plain, *_attack_scores(traffic.share, run)]
    left = [] if plain else unmade(traffic, [run])
    return [*known, _not_measured(traffic, run, left)] if left or not known else known


def _proofs(traffic: Traffic, run: RunData) -> list[tuple[str, str]]:
    """The guarantee of this payload in all its readings, or the weakest guarantee of its Part's other
    noise."""
    part = traffic.share.partition("/")[0]
    released = {t.share for t in run.traffic if t.way == "down" and t.guarantee == "dp"}
    proven = traffic.guarantee == "dp" or bool(released & {part, traffic.share})
    accounts = [account for name, account in run.privacy.items() if name == part or proven]
    readings = [r for account in accounts for r in account.get("epsilons", [])[0 if proven else -1 :]]
    return [(guarantee_text(r), "") for r in readings]


def _not_measured(traffic: Traffic, run: RunData, left: list[str]) -> tuple[str, str]:
    """The text for attacks that were not made, with their commands. left: their names."""
    words, data = " by ".join(filter(None, (NOT_MEASURED, ", ".join(left)))), str(run.config.get("data", ""))
    if traffic.sum_of:
        words += "; only sums were read here"
        words += ", so what can be attacked is the merged model" if left else ""
    able = [name for name in left if not samples_of(run).exceeds(name)]
    if able != left:
        words += f" ({ONE_INPUT})"
    how = [f"unskew attack {shlex.quote(str(run.path))} {name}" for name in able]
    if how and data.startswith("("):  # they are at sites, or were given in Python
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
    return "–" if value is None else significant(value, 3)


def _rows(finding: Mapping[str, Any]) -> list[list[str]]:
    """The cells of the table of an attack."""
    return [
        [
            str(s["payload"]),
            str(s["of"]),
            str(s["metric"]),
            _number(s["value"]),
            f"{_number(s['low'])} to {_number(s['high'])}",
            _number(s["floor"]),
            _number(s["ceiling"]),
            str(s["n"]),
        ]
        for s in finding["scores"]
    ]


def _pictures(method: str, run: RunData) -> list[tuple[str, Markup]]:
    """(title, picture) of all pictures of attacks on a run."""
    drawn = []
    for name, finding in run.attacks.items():
        shown = finding.get("pictures", {})
        if receivers := shown.get("roc"):
            drawn.append((f"{method}: {name}, true against false positives", figure(roc(receivers))))
        for title, sheet in shown.get("images", {}).items():
            picture = image_rows(sheet, sheet["rows"], "Samples and what was made of payloads")
            drawn.append((f"{method}: {title}", figure(picture)))
        if plot := shown.get("lines"):
            lines = [
                Line(
                    str(c["name"]), numbered_colour(i), *np.array([c["x"], c["y"], [0] * len(c["x"])], float)
                )
                for i, c in enumerate(plot["lines"])
            ]
            picture = figure(curves(lines, plot["x"], f"{plot['y']}, %"))
            drawn.append((f"{method}: {plot['y']}", picture))
    return [(title, picture) for title, picture in drawn if picture]
