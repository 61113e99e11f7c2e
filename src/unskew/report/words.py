"""The report's sentences: the result, the split, what to beware of, and how to repeat it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unskew.core.account import number
from unskew.report.numbers import MISSING, noun, p_value, percent, plural, size
from unskew.report.read import RunData
from unskew.report.stats import REFERENCES, Row, by_method, is_reference
from unskew.report.svg import shorten

LEFT_OUT = {"method", "seed", "set", "partition_seed", "workers", "lanes", "device"}


def competing(runs: Sequence[RunData]) -> RunData:
    """The first run that is no reference, or the first."""
    return next((r for r in runs if r.config.get("method") not in REFERENCES), runs[0])


def result(rows: Sequence[Row], runs: Sequence[RunData]) -> str:
    """One sentence: who leads, by how much, and whether the seeds can tell."""
    run = competing(runs)
    skew = run.federation.get("skew") or run.config.get("skew", "")
    where = f"on {run.federation.get('name') or run.config.get('data', 'its data')}" + (f" ({skew})" if skew else "")
    leader = next((r for r in rows if r.leads), None)
    if leader is None:
        return f"{rows[0].method} {where}: no global {noun(run.metric)} was written"
    few = run.rounds < 10  # then the mean of the last ten holds the first, too, and nothing is reached by it
    score = (
        f"{leader.method} {'averages' if few else 'reaches'} {percent(leader.mean10)}\u00a0% global {noun(run.metric)}"
    )
    where = f"over {plural(run.rounds, 'round')} {where}" if few else where
    rivals = [r for r in rows if not r.leads and not r.reference and r.mean10.n]
    if not rivals:
        return f"{score} {where}"
    second = max(rivals, key=lambda r: r.mean10.mean)
    ahead = f"{100 * (leader.mean10.mean - second.mean10.mean):.1f} points ahead of {second.method}"
    return f"{score} {where}, {ahead}{_certain(second, min(leader.n, second.n))}"


def _certain(second: Row, n: int) -> str:
    if second.p is None or math.isnan(second.p):
        return "; one seed cannot tell whether that would happen again"
    tie = f"a tie as far as {n} seeds can tell" if second.p >= 0.05 else f"over {n} seeds"
    return f" ({tie}, {p_value(second.p)})"


def cards(rows: Sequence[Row], runs: Sequence[RunData]) -> list[tuple[str, str]]:
    """The key numbers: (value, what it is)."""
    run, seeds = competing(runs), len({r.seed for r in runs})
    fed, here = run.federation, run.attendance
    lead = next((r for r in rows if r.leads), rows[0])
    found = [
        (
            f"{percent(lead.mean10, std=False)}\u00a0%" if lead.mean10.n else MISSING,
            f"global {noun(run.metric)}, {shorten(lead.method, 26)}",
        )
    ]
    if lead.worst.n:
        found.append((f"{percent(lead.worst, std=False)} %", "its worst client"))
    found.append((size(lead.up + lead.down), "sent, both ways, all clients"))
    if fed:
        found.append((f"{fed['clients']:,}", "clients"))
        found.append((f"{np.median(fed['sizes']['train'] or [0]):,.0f}", "samples per client (median)"))
    if here:
        answered, asked = (float(np.mean([len(row[i]) for row in here])) for i in (2, 1))
        found.append((f"{answered:.3g} of {asked:.3g}", "answer a round"))
    found.append((str(run.planned), "rounds"))
    found.append((str(seeds), "seeds" if seeds != 1 else "seed"))
    return found


def warnings(runs: Sequence[RunData]) -> list[str]:
    """What a reader must know before the numbers are believed."""
    found = []
    short = [r for r in runs if not r.finished]
    if short:
        where = ", ".join(f"{r.method} seed {r.seed} (round {r.rounds} of {r.planned})" for r in short[:4])
        found.append(
            f"Not finished ({len(short)} of {plural(len(runs), 'run')}): {where}{' …' if len(short) > 4 else ''}."
        )
    counts = {m: len(g) for m, g in by_method(runs).items()}
    if len(set(counts.values())) > 1:
        uneven = ", ".join(f"{m} {n}" for m, n in counts.items())
        found.append(f"Methods have different numbers of seeds: {uneven}.")
    for key, what in (("data", "data"), ("skew", "partitions"), ("clients", "numbers of clients")):
        seen = {str(r.config.get(key)) for r in runs if r.config.get("method") not in REFERENCES}
        if len(seen) > 1:
            found.append(
                f"These runs have different {what} ({', '.join(sorted(seen))}); ranks between them mean nothing."
            )
    dropped = [e for r in runs for e in r.events if str(e.get("code", "")).startswith("E3")]
    if dropped:
        found.append(f"{plural(len(dropped), 'event')} such as dropped replies or skipped rounds; listed at the end.")
    return found


def split(run: RunData) -> str:
    """The partition in one sentence."""
    fed = run.federation
    sizes, held = fed["sizes"]["train"], [sum(1 for v in row if v) for row in fed["labels"]]
    if not sizes:
        return ""
    test = f"; {fed['test']:,} test samples" if fed.get("test") else ""
    if fed.get("unit") == "pixels":
        return (
            f"{fed['name']}, {fed['skew']}, seed {run.seed}: {plural(fed['clients'], 'client')} with {min(sizes):,} to "
            f"{max(sizes):,} training images (median {np.median(sizes):,.0f}), every pixel labelled{test}. "
            "In a cell: the share of a client's training pixels, in percent."
        )
    return (
        f"{fed['name']}, {fed['skew']}, seed {run.seed}: {plural(fed['clients'], 'client')} with {min(sizes):,} to "
        f"{max(sizes):,} training samples (median {np.median(sizes):,.0f}) and on average {np.mean(held):.1f} of "
        f"{len(fed['classes'])} classes{test}."
    )


def answered(run: RunData, others: bool) -> str:
    """Attendance in one sentence; "" if nothing was written."""
    rows = run.attendance
    if not rows:
        return ""
    asked, came = (sum(len(r[i]) for r in rows) for i in (1, 2))
    if asked == came:
        everybody = (
            "every client was asked and"
            if asked == len(rows) * run.federation.get("clients", 0)
            else "everybody who was asked"
        )
        return f"In every round {everybody} answered."
    absent = f"{100 * (1 - came / max(asked, 1)):.0f} % of the requests went unanswered"
    rule = run.config.get("availability")
    same = " Every method sees the same absences." if others else ""
    return f"{absent}{f' (availability {rule}, seed {run.seed})' if rule else ''}.{same}"


def ledger(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """What each method's clients send and receive, by share; from its first seed."""
    found = []
    for method, group in by_method(runs).items():
        run = group[0]
        sends = (
            [] if is_reference(group) else sorted(run.traffic, key=lambda s: (s.way != "up", s.share != "w", s.share))
        )
        lines = [
            {
                "way": "sends" if s.way == "up" else "receives",
                "share": "weights" if s.share == "w" else s.share,
                "shape": s.shape,
                "each": size(s.most),
                "often": "every round" if len(s.rounds) >= 0.9 * run.rounds else f"{plural(len(s.rounds), 'round')}",
                "total": size(s.total),
                "reads": {"each": "each one", "sum": "their sum"}.get(s.reads, s.reads) if s.way == "up" else "",
                "guarantee": s.guarantee if s.way == "up" else "",
            }
            for s in sends
        ]
        found.append({"method": method, "lines": lines, "none": _shares_nothing(run)})
    return found


def privacy(runs: Sequence[RunData]) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """(method, release, [(epsilon, reading)]) where a release is noisy; from its first seed, as the ledger."""
    return [
        (method, account["release"], [(number(e["epsilon"]), e["reading"]) for e in account["epsilons"]])
        for method, group in by_method(runs).items()
        for account in group[0].privacy.values()
    ]


def _shares_nothing(run: RunData) -> str:
    if run.config.get("method") == "centralised":
        return "Reference: all raw data in one place."
    return "Nothing leaves a client." if run.config.get("method") == "local" else "Nothing has been sent yet."


def settings(runs: Sequence[RunData]) -> tuple[dict[str, Any], list[tuple[str, list[str]]]]:
    """(what all runs share, what differs: key, and its value for each method)."""
    keys = list(dict.fromkeys(k for r in runs for k in r.config))
    same = {k: runs[0].config.get(k) for k in keys if all(r.config.get(k) == runs[0].config.get(k) for r in runs)}
    groups = by_method(runs)
    differing = []
    for key in keys:
        if key not in same:
            per_method = [", ".join(dict.fromkeys(str(r.config.get(key)) for r in g)) for g in groups.values()]
            if key != "method" and (key != "seed" or len(set(per_method)) > 1):
                differing.append((key, per_method))
    return same, differing


def command(runs: Sequence[RunData]) -> str:
    """What repeats these runs."""
    if len(runs) == 1:
        return f"unskew run {shlex.quote(str(Path(runs[0].path.parent.name, runs[0].name, 'config.yaml')))}"
    first = competing(runs)
    methods = [m for m, g in by_method(runs).items() if not is_reference(g)]
    defaults = _defaults()
    options = [
        f"--{k.replace('_', '-')} {shlex.quote(str(v))}"
        for k, v in first.config.items()
        if k not in LEFT_OUT and v is not None and v != defaults.get(k)
    ]
    folder = runs[0].path.parent
    if not (folder / "compare.yaml").is_file():
        return "\n".join(
            f"unskew run {shlex.quote(str(Path(r.path.parent.name, r.name, 'config.yaml')))}" for r in runs[:20]
        )
    return " ".join(["unskew compare", *map(shlex.quote, methods), *options, f"--seeds {len({r.seed for r in runs})}"])


def _defaults() -> dict[str, Any]:
    from unskew.config import FIELDS

    return {n: f.default for n, f in FIELDS.items()}
