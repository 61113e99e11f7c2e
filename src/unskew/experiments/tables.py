"""A reproduction as a table: in rows of text, as plain text for the terminal, as CSV and as LaTeX."""

from __future__ import annotations

import csv
import io

from unskew.experiments import logs, wording
from unskew.experiments.result import EntryRecord, TableResult
from unskew.report.numbers import megabytes, whole
from unskew.scores import significant

HEAD = (
    "row", "method", "paper", "ours", "95 %", "without payload", "raw input", "gap", "last", "best", "mean-10",
    "vs best other", "MB",
)  # fmt: skip
PAPER = ("paper", "gap")
"""The columns that only a table with published numbers has."""
ATTACKED = ("95 %", "without payload", "raw input")
"""The columns that only a table with attacks has."""
TRAINED = ("last", "best", "mean-10")
"""The columns that a table of attacks alone has not."""


def table(result: TableResult) -> tuple[list[str], list[list[str]]]:
    """(column titles, one line of text for each row and method)."""
    attacks, others = wording.attacked(result)
    short = result["scale"] != 1
    hidden = {
        *(() if wording.has_paper_numbers(result) else PAPER),
        *(("gap",) if short else ()),
        *(() if attacks else ATTACKED),
        *(() if others else TRAINED),
    }
    shown = [i for i, title in enumerate(HEAD) if title not in hidden]
    lines = [_line(entry, result["unit"], short) for entry in result["entries"]]
    return [HEAD[i] for i in shown], [[line[i] for i in shown] for line in lines]


def _line(entry: EntryRecord, unit: str, short: bool) -> list[str]:
    """short: the run has fewer rounds than the paper's, whose number then stands in brackets."""
    given, sent = entry["paper"], entry["megabytes"]
    paper = "" if given is None else f"{given:.2f}" if unit == "percent" or abs(given) >= 0.1 else significant(given, 3)
    return [
        entry["row"],
        entry["method"],
        f"({paper})" if paper and short else paper,
        wording.points(entry["ours"], unit),
        *wording.bounds(entry, unit),
        wording.signed(entry["gap"], unit),
        *("" if entry.get("bounds") else wording.points(entry[name], unit) for name in ("last", "best", "mean10")),
        wording.lead(entry, unit),
        whole(sent) if sent >= 0.5 else megabytes(1e6 * sent),
    ]


def plain(result: TableResult) -> str:
    """The table, what its columns mean, the verdicts and the privacy figures, as text."""
    text = [*_aligned(*table(result)), "", wording.note(result), ""]
    if beside := logs.note(result):
        text += [*_aligned(*logs.table(result)), "", beside, ""]
    for claim in result["claims"]:
        margins = wording.margins(claim, result["unit"])
        text.append(f"{claim['verdict']:<28}{claim['text']}" + (f"  ({margins})" if margins else ""))
    if rule := wording.judged(result):
        text.append(rule)
    for row, method, release, readings in wording.privacy(result):
        text += ["", f"{row}, {method}: {release}"]
        text += [f"  epsilon {epsilon:>9}  {reading}" for epsilon, reading in readings]
    return "\n".join(text)


def _aligned(head: list[str], lines: list[list[str]]) -> list[str]:
    """Lines whose columns stand below their titles."""
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
    return [
        "  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))).rstrip()
        for line in [head, *lines]
    ]


def as_csv(result: TableResult) -> str:
    """One line for each row and method, numbers in the table's unit. scale: the share of the rounds that was run."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ("row", "method", "paper", "mean", "std", "seeds", "last", "best", "mean10", "stability", "megabytes", "scale")
    )
    for entry in result["entries"]:
        ours = entry["ours"]
        others = (entry[name]["mean"] for name in ("last", "best", "mean10", "stability"))
        before = map(_four_digits, (entry["paper"], ours["mean"], ours["std"]))
        after = map(_four_digits, (*others, entry["megabytes"]))
        writer.writerow((entry["row"], entry["method"], *before, ours["n"], *after, f"{result['scale']:g}"))
    return out.getvalue()


def latex(result: TableResult) -> str:
    """A LaTeX table: a line for each method, a column for each row; ours with the paper's number in brackets.

    The number is grey where our runs are shorter, which needs the package xcolor. What the numbers are stands above as comments.
    """
    entries = {(entry["row"], entry["method"]): entry for entry in result["entries"]}
    rows = list(dict.fromkeys(row for row, _ in entries))
    lines = [
        " & ".join([_escaped(method), *(_cell(entries.get((row, method)), result) for row in rows)]) + r" \\"
        for method in dict.fromkeys(method for _, method in entries)
    ]
    return "\n".join(
        [
            *(f"% {line}" for line in wording.note(result).splitlines()),
            rf"\begin{{tabular}}{{l{'r' * len(rows)}}}",
            r"\toprule",
            " & ".join(["", *map(_escaped, rows)]) + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def _four_digits(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _cell(entry: EntryRecord | None, result: TableResult) -> str:
    if entry is None or (mean := entry["ours"]["mean"]) is None:
        return "--"
    if result["unit"] != "percent":
        return significant(mean, 3)
    spread = rf" $\pm$ {entry['ours']['std']:.1f}" if entry["ours"]["n"] > 1 else ""
    paper = "" if entry["paper"] is None else f"({entry['paper']:.1f})"
    if paper:
        paper = " " + (paper if result["scale"] == 1 else rf"\textcolor{{gray}}{{{paper}}}")
    return f"{mean:.1f}{spread}{paper}"


def _escaped(text: str) -> str:
    return text.replace("_", r"\_").replace("%", r"\%").replace("&", r"\&")
