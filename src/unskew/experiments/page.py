"""What is told of a reproduction as text: the paper's numbers beside ours, the verdicts, and how it was run.

Everything is made from the kept result (`verdict.as_json`), so that a page can be made anew from its file.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from unskew.core.account import number
from unskew.report.numbers import MISSING, p_value, whole

MEASURE = {"best": "best round", "last": "last round", "mean10": "mean of the last ten rounds, of those evaluated"}
EPSILON = "Of the client and class that the release protects least, over all seeds."
Result = Mapping[str, Any]
HEAD = ("row", "method", "paper", "ours", "gap", "last", "best", "mean-10", "vs best other", "MB")


def table(found: Result) -> tuple[list[str], list[list[str]]]:
    """(head, lines) of text, one line per row and method; the paper's number and the gap only where it has any."""
    unit = found["unit"]
    lines = [
        [
            e["row"],
            e["method"],
            _number(e["paper"]),
            _points(e["ours"], unit),
            _signed(e["gap"], unit),
            _points(e["last"], unit),
            _points(e["best"], unit),
            _points(e["mean10"], unit),
            _versus(e, unit),
            whole(e["megabytes"]),
        ]
        for e in found["entries"]
    ]
    kept = [i for i, title in enumerate(HEAD) if title not in ("paper", "gap") or published(found)]
    return [HEAD[i] for i in kept], [[line[i] for i in kept] for line in lines]


def published(found: Result) -> bool:
    """Whether the paper has a number for anything that was run."""
    return any(e["paper"] is not None for e in found["entries"])


def plain(found: Result) -> str:
    """The table and the verdicts as text."""
    head, lines = table(found)
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
    text = [
        "  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))).rstrip()
        for line in [head, *lines]
    ]
    told = [f"{c['verdict']:<28}{c['text']}{_bracketed(margins(c, found['unit']))}" for c in found["claims"]]
    figures = []
    for row, method, release, readings in privacy(found):
        figures += ["", f"{row}, {method}: {release}", *(f"  epsilon {value:>9}  {of}" for value, of in readings)]
    return "\n".join([*text, "", note(found), "", *told, *figures])


def noun_of(found: Result) -> str:
    """What the numbers are called: Dice, accuracy, or the measure's own name."""
    metric = found["metric"]
    return "Dice" if metric == "dice" else "accuracy" if metric == "mean" else metric.replace("_", " ")


def note(found: Result) -> str:
    """What the numbers are, in sentences."""
    n = max((e["ours"]["n"] for e in found["entries"]), default=0)
    seeds = f"mean ± sample standard deviation over {n} seeds" if n > 1 else "one seed"
    percent = found["unit"] == "percent"
    of_measure = found["scope"] == "measure"
    lines = [
        f"ours: {MEASURE[found['measure']]}{', as the paper reports' if found['paper'] else ''}{', in %' * percent}; {seeds}."
        + (" gap: ours less the paper's." if published(found) else ""),
        f"vs best other: {'points' if percent else 'how much'} ahead of the {'largest' if of_measure else 'best'} other "
        "method of the row, with a paired t-test over seeds, Holm-corrected.",
    ]
    if of_measure:
        lines.append(
            f"The number is the measure `{found['metric']}`, which docs/measures.md explains; larger is not better by itself."
        )
    if found["scale"] != 1:
        target = ", so the paper's numbers are no target" if found["paper"] else ""
        lines.append(f"SCALED: {found['scale']:g} of the {'paper' if found['paper'] else 'table'}'s rounds{target}.")
    if found.get("tuned"):
        tuned = "; ".join(f"{m}: {t['method']}" for m, t in found["tuned"].items())
        lines.append(f"Tuned with {found['tune']} trials a method on the first row's validation samples: {tuned}.")
    return "\n".join(lines)


def counted(found: Result) -> tuple[int, int]:
    """(claims reproduced in every row run, claims that could be tested)."""
    tested = [c for c in found["claims"] if c["margins"]]
    return sum(c["verdict"] == "reproduced" for c in tested), len(tested)


def summary(found: Result) -> str:
    """`3 of 4 claims reproduced`."""
    held, tested = counted(found)
    if not tested:
        return "no claim tested"
    return f"{held} of {tested} claim{'s' if tested != 1 else ''} reproduced"


def notes(found: Result) -> list[str]:
    """How rows that were run differ from the paper's."""
    ran = {e["row"] for e in found["entries"]}
    return [f"`{name}`: {row['note']}." for name, row in found["rows"].items() if row["note"] and name in ran]


def privacy(found: Result) -> list[tuple[str, str, str, list[tuple[str, str]]]]:
    """(row, method, release, [(epsilon, reading)]): the published figure first, the honest ones after it."""
    return [
        (row, method, account["release"], [(number(e["epsilon"]), e["reading"]) for e in account["epsilons"]])
        for row, methods in found.get("privacy", {}).items()
        for method, parts in methods.items()
        for account in parts.values()
    ]


def markdown(found: Result) -> str:
    """The page that is kept with the documentation."""
    head, lines = table(found)
    rows = [f"| {' | '.join(line)} |" for line in lines]
    unit = found["unit"]
    verdicts = [f"| {c['text']} | {c['verdict']} | {margins(c, unit) or 'not run'} |" for c in found["claims"]]
    pieces = [
        f"# {found['title']}",
        f"{found['paper']}." if found["paper"] else "",
        f"```sh\n{found['command']}\n```",
        f"Made with unskew {found['unskew']} on {found['date']}: {found['machine']}; "
        f"{found['hours']:.2f} hours of training in all runs.{makers(found)}",
        f"| {' | '.join(head)} |\n|{'---|' * len(head)}\n" + "\n".join(rows),
        note(found),
        f"## Claims\n\n| {'the paper says' if found['paper'] else 'claim'} | here | margin{' in points' * (unit == 'percent')} by row or step{' (in the paper)' * bool(found['paper'])} |\n|---|---|---|\n"
        + "\n".join(verdicts)
        if verdicts
        else "",
        _epsilons(found),
        f"## {'What differs' if found['paper'] else 'Notes'}\n\n" + "\n".join(f"- {n}" for n in notes(found))
        if notes(found)
        else "",
        f"## {'What the paper leaves open, and our choice' if found['paper'] else 'Choices'}\n\n"
        + "\n".join(f"- {o}" for o in found["open"])
        if found["open"]
        else "",
        f"## What we found\n\n{found['finding']}" if found["finding"] else "",
    ]
    return "\n\n".join(p for p in pieces if p) + "\n"


def makers(found: Result) -> str:
    """By which unskew the runs were made, where not all by the one that made the page."""
    by = found["made_by"]
    if not by:
        return " Runs that it found finished may be older; who made them was not recorded then."
    if set(by) == {found["unskew"]}:
        return ""
    return " Runs by version: " + ", ".join(f"{n} by {who}" for who, n in by.items()) + "."


def _epsilons(found: Result) -> str:
    lines = [
        f"| {row} | {method} | {release} | {epsilon} | {reading} |"
        for row, method, release, readings in privacy(found)
        for epsilon, reading in readings
    ]
    head = "| row | method | release | epsilon | reading |\n|---|---|---|---|---|\n"
    return f"## Differential privacy of what is shared\n\n{EPSILON}\n\n{head}" + "\n".join(lines) if lines else ""


def rows(found: Result) -> str:
    """The rows that were run."""
    return ", ".join(dict.fromkeys(e["row"] for e in found["entries"]))


def rounds(found: Result) -> str:
    """`100`, or `25 (0.25 of the paper's)`: the rounds of the longest run."""
    last = max((int(s[-1][0]) for row in found["curves"].values() for m in row.values() for s in m if s), default=0)
    of = "the paper's" if found["paper"] else "the table's"
    return f"{last}" if found["scale"] == 1 else f"{last} ({found['scale']:g} of {of})"


def named(found: Sequence[Result]) -> list[str]:
    """What each of several results is called: its title, and which page of them where others have the same."""
    titles = [r["title"] for r in found]
    return [t if titles.count(t) == 1 else f"{t} ({r['page']})" for t, r in zip(titles, found)]


def index_title(found: Sequence[Result]) -> tuple[str, str]:
    """What the page that leads to others is headed, and what each of them has."""
    if any(r["paper"] for r in found):
        return (
            "Published tables, run here",
            "the paper's numbers beside ours where there are any, and a verdict on every claim",
        )
    return "Tables, run here", "every number, and a verdict on every claim"


def index(found: Sequence[Result], folder: str) -> str:
    """The page that leads to the others, as Markdown. folder: where they lie, for the command that it tells."""
    title, has = index_title(found)
    lines = [
        f"# {title}",
        f"Each page has the command that made it, {has}; its `.json` has every number and curve. `unskew report {folder}` makes HTML pages of them.",
        "| table | rows | seeds | rounds | claims | when |\n|---|---|---|---|---|---|",
    ]
    for r, name in zip(found, named(found)):
        lines[-1] += (
            f"\n| [{name}]({r['page']}.md) | {rows(r)} | {r['seeds']} | {rounds(r)} | {summary(r)} | {r['date']}, {r['unskew']} |"
        )
    return "\n\n".join(lines) + "\n"


def as_csv(found: Result) -> str:
    """One line per row and method, numbers in the table's unit."""
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n")
    write.writerow(
        ("row", "method", "paper", "mean", "std", "seeds", "last", "best", "mean10", "stability", "megabytes")
    )
    for e in found["entries"]:
        scores = (e[k]["mean"] for k in ("last", "best", "mean10", "stability"))
        numbers = (e["paper"], e["ours"]["mean"], e["ours"]["std"])
        write.writerow(
            (e["row"], e["method"], *map(_bare, numbers), e["ours"]["n"], *map(_bare, scores), _bare(e["megabytes"]))
        )
    return out.getvalue()


def latex(found: Result) -> str:
    """A table for a paper: methods down, rows across, ours with the paper's number in brackets."""
    entries = found["entries"]
    rows = list(dict.fromkeys(e["row"] for e in entries))
    of = {(e["row"], e["method"]): e for e in entries}
    lines = [
        " & ".join([_tex(m), *(_tex_cell(of.get((r, m)), found["unit"]) for r in rows)]) + r" \\"
        for m in dict.fromkeys(e["method"] for e in entries)
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


def margins(claim: Mapping[str, Any], unit: str) -> str:
    """`p0.1 +2.3 [+1.2], p0.2 -0.4`: by row, in brackets the paper's own."""
    return ", ".join(
        f"{row} {_signed(m, unit)}" + (f" [{_signed(paper, unit)}]" if paper is not None else "")
        for row, m in claim["margins"].items()
        for paper in [claim["paper"].get(row)]
    )


def _bracketed(text: str) -> str:
    return f"  ({text})" if text else ""


def _points(s: Mapping[str, Any], unit: str) -> str:
    if not s["n"] or s["mean"] is None:
        return MISSING
    mean, std = ("{:.1f}", "{:.1f}") if unit == "percent" else ("{:.3g}", "{:.2g}")
    return mean.format(s["mean"]) + (f" ± {std.format(s['std'])}" if s["n"] > 1 else "")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _bare(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _signed(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:+.1f}" if unit == "percent" else f"{value:+.2g}"


def _versus(e: Mapping[str, Any], unit: str) -> str:
    if e["ahead"] is None:
        return ""
    return _signed(e["ahead"], unit) + ("" if e["p"] is None else f", {p_value(e['p'])}")


def _tex_cell(e: Mapping[str, Any] | None, unit: str) -> str:
    if e is None or e["ours"]["mean"] is None:
        return "--"
    paper = "" if e["paper"] is None else rf" ({e['paper']:.1f})"
    spread = rf" $\pm$ {e['ours']['std']:.1f}" if e["ours"]["n"] > 1 else ""
    return f"{e['ours']['mean']:.1f}{spread}{paper}" if unit == "percent" else f"{e['ours']['mean']:.3g}"


def _tex(text: str) -> str:
    return text.replace("_", r"\_").replace("%", r"\%").replace("&", r"\&")
