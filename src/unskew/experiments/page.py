"""The page of a reproduction: the paper's numbers beside ours, the verdicts, curves, and how it was run."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from unskew.experiments.plan import Experiment
from unskew.experiments.verdict import Entry, Verdict, series_of
from unskew.report.numbers import MISSING, p_value, percent, whole
from unskew.report.read import RunData
from unskew.report.stats import Score

MEASURE = {"best": "best round", "last": "last round", "mean10": "mean of the last ten rounds, of those evaluated"}


def table(made: Experiment, found: Sequence[Entry]) -> tuple[tuple[str, ...], list[list[str]]]:
    """(head, lines) of text, one line per row and method."""
    head = ("row", "method", "paper", "ours", "gap", "last", "best", "mean-10", "vs best other", "MB")
    return head, [
        [
            e.row,
            e.method,
            _number(e.paper),
            _points(e.ours, made.unit),
            _signed(e.gap, made.unit),
            _points(e.last, made.unit),
            _points(e.best, made.unit),
            _points(e.mean10, made.unit),
            _versus(e, made.unit),
            whole(e.megabytes),
        ]
        for e in found
    ]


def plain(made: Experiment, found: Sequence[Entry], told: Sequence[Verdict], scaled: float) -> str:
    """The table and the verdicts as text."""
    head, lines = table(made, found)
    widths = [max(len(line[i]) for line in [list(head), *lines]) for i in range(len(head))]
    text = [
        "  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))).rstrip()
        for line in [head, *lines]
    ]
    return "\n".join(
        [
            *text,
            "",
            note(made, found, scaled),
            "",
            *(f"{v.word:<28}{v.claim.text}{_margins(v, made.unit)}" for v in told),
        ]
    )


def note(made: Experiment, found: Sequence[Entry], scaled: float) -> str:
    """What the numbers are, in sentences."""
    n = max((e.ours.n for e in found), default=0)
    seeds = f"mean ± sample standard deviation over {n} seeds" if n > 1 else "one seed"
    points = "points" if made.unit == "percent" else "how much"
    best = "largest" if made.scope == "measure" else "best"
    lines = [
        f"ours: {MEASURE[made.measure]}, as the paper reports{', in %' if made.unit == 'percent' else ''}; {seeds}. gap: ours less the paper's.",
        f"vs best other: {points} ahead of the {best} other method of the row, with a paired t-test over seeds, Holm-corrected.",
    ]
    if made.scope == "measure":
        lines.append(
            f"The number is the measure `{made.metric}`, which docs/measures.md explains; larger is not better by itself."
        )
    if scaled != 1:
        lines.append(f"SCALED: {scaled:g} of the paper's rounds, so the paper's numbers are no target.")
    return "\n".join(lines)


def markdown(made: Experiment, found: Sequence[Entry], told: Sequence[Verdict], facts: Mapping[str, Any]) -> str:
    """The page that is kept with the documentation."""
    head, lines = table(made, found)
    rows = [f"| {' | '.join(line)} |" for line in lines]
    ran = {e.row for e in found}
    notes = [f"- `{r.name}`: {r.note}." for r in made.rows if r.note and r.name in ran]
    verdicts = [f"| {v.claim.text} | {v.word} | {_margins(v, made.unit).strip(' ()') or 'not run'} |" for v in told]
    pieces = [
        f"# {made.title}",
        f"{made.paper}.",
        f"```sh\n{facts['command']}\n```",
        f"Run at commit `{facts['commit']}` on {facts['date']}: {facts['machine']}; {facts['hours']}.",
        f"| {' | '.join(head)} |\n|{'---|' * len(head)}\n" + "\n".join(rows),
        note(made, found, facts["scale"]),
        f"## Claims\n\n| the paper says | here | margin{' in points' * (made.unit == 'percent')} by row (in the paper) |\n|---|---|---|\n"
        + "\n".join(verdicts)
        if told
        else "",
        "## What differs\n\n" + "\n".join(notes) if notes else "",
        "## What the paper leaves open, and our choice\n\n" + "\n".join(f"- {o}" for o in made.open)
        if made.open
        else "",
    ]
    return "\n\n".join(p for p in pieces if p) + "\n"


def as_csv(made: Experiment, found: Sequence[Entry]) -> str:
    """One line per row and method, numbers in the table's unit."""
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n")
    write.writerow(
        ("row", "method", "paper", "mean", "std", "seeds", "last", "best", "mean10", "stability", "megabytes")
    )
    for e in found:
        scores = (e.last, e.best, e.mean10, e.stability)
        write.writerow(
            (
                e.row,
                e.method,
                _bare(e.paper),
                _bare(e.ours.mean),
                _bare(e.ours.std),
                e.ours.n,
                *(_bare(s.mean) for s in scores),
                _bare(e.megabytes),
            )
        )
    return out.getvalue()


def latex(made: Experiment, found: Sequence[Entry]) -> str:
    """A table for a paper: methods down, rows across, ours with the paper's number in brackets."""
    rows = list(dict.fromkeys(e.row for e in found))
    of = {(e.row, e.method): e for e in found}
    lines = [
        " & ".join([_tex(m), *(_tex_cell(of.get((r, m)), made.unit) for r in rows)]) + r" \\"
        for m in dict.fromkeys(e.method for e in found)
    ]
    head = " & ".join(["", *map(_tex, rows)]) + r" \\"
    return "\n".join(
        [
            rf"\begin{{tabular}}{{l{'r' * len(rows)}}}",
            r"\toprule",
            head,
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def curves(
    runs: Mapping[tuple[str, str], Sequence[RunData]], made: Experiment
) -> dict[str, dict[str, list[list[float]]]]:
    """By row and method the seeds' series [[round, value], ...] in the table's unit, for a picture of one's own."""
    found: dict[str, dict[str, list[list[float]]]] = {}
    for (row, method), group in runs.items():
        series = [series_of(r, made, made.row(row)) for r in group]
        found.setdefault(row, {})[method] = [[[int(t), float(f"{v:.6g}")] for t, v in zip(*s)] for s in series]  # type: ignore[misc]
    return found


def _points(s: Score, unit: str) -> str:
    if unit == "percent":
        return percent(Score(s.mean / 100, s.std / 100, s.n))
    return MISSING if not s.n else f"{s.mean:.3g} ± {s.std:.2g}" if s.n > 1 else f"{s.mean:.3g}"


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2f}"


def _bare(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4g}"


def _signed(value: float, unit: str) -> str:
    return "" if math.isnan(value) else f"{value:+.1f}" if unit == "percent" else f"{value:+.2g}"


def _versus(e: Entry, unit: str) -> str:
    if math.isnan(e.ahead):
        return ""
    return _signed(e.ahead, unit) + ("" if math.isnan(e.p) else f", p {p_value(e.p)}")


def _margins(v: Verdict, unit: str) -> str:
    if not v.margins:
        return ""
    told = [
        f"{row} {_signed(m, unit)}" + ("" if math.isnan(v.papers[row]) else f" [{_signed(v.papers[row], unit)}]")
        for row, m in v.margins.items()
    ]
    return f"  ({', '.join(told)})"


def _tex_cell(e: Entry | None, unit: str) -> str:
    if e is None:
        return "--"
    paper = "" if math.isnan(e.paper) else rf" ({e.paper:.1f})"
    spread = rf" $\pm$ {e.ours.std:.1f}" if e.ours.n > 1 else ""
    return f"{e.ours.mean:.1f}{spread}{paper}" if unit == "percent" else f"{e.ours.mean:.3g}"


def _tex(text: str) -> str:
    return text.replace("_", r"\_").replace("%", r"\%").replace("&", r"\&")
