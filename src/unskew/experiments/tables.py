"""A reproduction as a table (plain text, CSV and LaTeX), and its comparison with published logs.

A log has the score after each round of one run, so a run of any length can be compared with it at equal
rounds: by means of ten rounds, by the best score so far, and by the change between rounds. All functions work
on the stored result alone.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

import numpy as np

from unskew.experiments import wording
from unskew.experiments.result import EntryRecord, TableResult
from unskew.report.analysis.numbers import megabytes, whole_number
from unskew.scores import significant

TEN = 10
LOG_HEAD = ("row", "method", "rounds", "log", "ours", "ours minus log")
LOG_NOTE = (
    "log: {sources}. rounds: means over the rounds from a to b that were evaluated here; best to: the best of"
    " them so far; a round to the next: by how much neighbouring rounds differ, the median. One published run"
    " each, so compare differences with the last."
)
SHORT_RUN_NOTE = "Ours has shortened schedules, so at equal rounds its learning rate is lower than the log's."
Points = dict[int, float]
"""Scores by round."""


def log_pairs(result: TableResult) -> list[tuple[str, str, Points, list[Points]]]:
    """(row, method, log, our seeds) for every log with runs of ours; scores at their common rounds."""
    pairs = []
    for row, methods in result.get("logs", {}).items():
        for method, log in methods.items():
            values = dict(enumerate(log["values"], 1))
            seeds = [
                {int(t): v for t, v in points} for points in result["curves"].get(row, {}).get(method, [])
            ]
            rounds = set(values).intersection(*seeds) if seeds else set[int]()
            if rounds:
                there = {t: values[t] for t in sorted(rounds)}
                pairs.append((row, method, there, [{t: seed[t] for t in there} for seed in seeds]))
    return pairs


def log_table(result: TableResult) -> tuple[list[str], list[list[str]]]:
    """(column titles, lines of text); no lines without a log."""
    lines: list[list[str]] = []
    for row, method, log, seeds in log_pairs(result):
        for name, tens in _tens(log).items():
            lines.append([row, method, name, *_log_cells(_mean(log, tens), [_mean(s, tens) for s in seeds])])
        best = _log_cells(max(log.values()), [max(s.values()) for s in seeds])
        lines.append([row, method, f"best to {max(log)}", *best])
        changes = [_change(seed) for seed in seeds]
        if not np.isnan(changes[0]):
            lines.append([row, method, "a round to the next", *_log_cells(_change(log), changes)])
    return list(LOG_HEAD), lines


def log_verdicts(result: TableResult) -> list[str]:
    """A sentence for each log of two or more rounds: whether our run follows it, or where it departs.

    A run follows a log if no mean of ten rounds differs from the log's by more than the median difference of
    neighbouring rounds of the log. The mean over seeds counts.
    """
    sentences = []
    for row, method, log, seeds in log_pairs(result):
        spread, tens = _change(log), _tens(log)
        if np.isnan(spread):
            continue
        gaps = {
            name: float(np.mean([_mean(seed, rounds) for seed in seeds])) - _mean(log, rounds)
            for name, rounds in tens.items()
        }
        apart = [f"{name} ({gap:+.1f})" for name, gap in gaps.items() if abs(gap) > spread]
        n, most = len(gaps), max(map(abs, gaps.values()))
        text = f"follows the log: all {n} means of ten rounds lie within {most:.1f} of its"
        if apart:
            others = f"the other {n - len(apart)} of {n} means of ten rounds follow it"
            text = f"parts from the log in rounds {', '.join(apart)}; {others}"
        median = np.mean([np.median([abs(seed[t] - log[t]) for t in log]) for seed in seeds])
        sentences.append(
            f"{row}, {method}: {text}. Neighbouring rounds of the log are {spread:.1f} apart in the median, a"
            f" round of ours and the same round of the log {median:.1f}."
        )
    return sentences


def log_note(result: TableResult) -> str:
    """The verdicts on the logs, the meaning of their table, and their sources; "" without a log."""
    logs = result.get("logs", {})
    sources = [logs[row][method]["source"] for row, method, *_ in log_pairs(result)]
    if not sources:
        return ""
    text = LOG_NOTE.format(sources="; ".join(dict.fromkeys(sources)))
    return "\n".join([*log_verdicts(result), f"{text} {SHORT_RUN_NOTE}" if result["scale"] != 1 else text])


def _tens(scores: Points) -> dict[str, list[int]]:
    """The scored rounds in groups of ten, by names such as "1 to 10"; the last group may be shorter."""
    last = max(scores)
    tens = {first: [t for t in scores if first <= t < first + TEN] for first in range(1, last + 1, TEN)}
    return {f"{first} to {min(first + TEN - 1, last)}": rounds for first, rounds in tens.items() if rounds}


def _mean(scores: Mapping[int, float], rounds: Sequence[int]) -> float:
    return float(np.mean([scores[t] for t in rounds]))


def _change(scores: Mapping[int, float]) -> float:
    """The median distance between the scores of neighbouring rounds; NaN for a single round."""
    values = [scores[t] for t in sorted(scores)]
    return float(np.median(np.abs(np.diff(values)))) if len(values) > 1 else float("nan")


def _log_cells(log: float, ours: Sequence[float]) -> list[str]:
    spread = f" ± {np.std(ours, ddof=1):.1f}" if len(ours) > 1 else ""
    mean = float(np.mean(ours))
    return [f"{log:.1f}", f"{mean:.1f}{spread}", f"{mean - log:+.1f}"]


HEAD = ("row", "method", "paper", "ours", "95 %", "without payload", "raw input", "gap", "last", "best")
HEAD += ("mean-10", "vs best other", "MB")
PAPER = ("paper", "gap")
"""Columns of tables with published numbers only."""
ATTACK_COLUMNS = ("95 %", "without payload", "raw input")
"""Columns of tables with attacks only."""
TRAINING_COLUMNS = ("last", "best", "mean-10")
"""Columns that a table of attacks alone lacks."""


def table(result: TableResult) -> tuple[list[str], list[list[str]]]:
    """(column titles, a line of texts for each row and method)."""
    attacks, others = wording.score_origins(result)
    short = result["scale"] != 1
    hidden = {
        *(() if wording.has_paper_numbers(result) else PAPER),
        *(("gap",) if short else ()),
        *(() if attacks else ATTACK_COLUMNS),
        *(() if others else TRAINING_COLUMNS),
    }
    shown = [i for i, title in enumerate(HEAD) if title not in hidden]
    lines = [_line(entry, result["unit"], short) for entry in result["entries"]]
    return [HEAD[i] for i in shown], [[line[i] for i in shown] for line in lines]


def _line(entry: EntryRecord, unit: str, short: bool) -> list[str]:
    """The cells of one entry. short: whether the run has fewer rounds than the paper's, whose number then is
    in brackets."""
    published, sent = entry["paper"], entry["megabytes"]
    if published is None:
        paper = ""
    elif unit == "percent" or abs(published) >= 0.1:
        paper = f"{published:.2f}"
    else:
        paper = significant(published, 3)
    return [
        entry["row"],
        entry["method"],
        f"({paper})" if paper and short else paper,
        wording.points(entry["ours"], unit),
        *wording.bounds(entry, unit),
        wording.with_sign(entry["gap"], unit),
        *(
            "" if entry.get("bounds") else wording.points(entry[name], unit)
            for name in ("last", "best", "mean10")
        ),
        wording.lead(entry, unit),
        whole_number(sent) if sent >= 0.5 else megabytes(1e6 * sent),
    ]


def plain(result: TableResult) -> str:
    """The table, what its columns mean, the verdicts and the privacy figures, as text."""
    text = [*_aligned(*table(result)), "", wording.note(result), ""]
    if logs := log_note(result):
        text += [*_aligned(*log_table(result)), "", logs, ""]
    for claim in result["claims"]:
        margins = wording.margins(claim, result["unit"])
        text.append(f"{wording.verdict(claim):<42}{claim['text']}  ({margins})")
    if rule := wording.rules(result):
        text.append(rule)
    for row, method, release, readings in wording.privacy(result):
        text += ["", f"{row}, {method}: {release}"]
        text += [f"  epsilon {epsilon:>9}  {reading}" for epsilon, reading in readings]
    return "\n".join(text)


def _aligned(head: list[str], lines: list[list[str]]) -> list[str]:
    """Lines with aligned columns."""
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
    return [
        "  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))).rstrip()
        for line in [head, *lines]
    ]


CSV_HEAD = "row method paper mean std seeds last best mean10 stability megabytes scale"


def as_csv(result: TableResult) -> str:
    """A line for each row and method, numbers in the table's unit; `scale` is the share of rounds run."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_HEAD.split())
    for entry in result["entries"]:
        ours = entry["ours"]
        others = (entry[name]["mean"] for name in ("last", "best", "mean10", "stability"))
        before = map(_four_digits, (entry["paper"], ours["mean"], ours["std"]))
        after = map(_four_digits, (*others, entry["megabytes"]))
        writer.writerow((entry["row"], entry["method"], *before, ours["n"], *after, f"{result['scale']:g}"))
    return out.getvalue()


def latex(result: TableResult) -> str:
    """A LaTeX table with a line for each method and a column for each row.

    The paper's number follows ours in brackets, in grey (package xcolor) if our runs are shorter. Comments
    above the table explain the numbers.
    """
    entries = {(entry["row"], entry["method"]): entry for entry in result["entries"]}
    rows = list(dict.fromkeys(row for row, _ in entries))
    lines = [
        " & ".join([_escaped(method), *(_cell(entries.get((row, method)), result) for row in rows)]) + r" \\"
        for method in dict.fromkeys(method for _, method in entries)
    ]
    head = " & ".join(["", *map(_escaped, rows)]) + r" \\"
    notes = [f"% {line}" for line in wording.note(result).splitlines()]
    begin = [rf"\begin{{tabular}}{{l{'r' * len(rows)}}}", r"\toprule", head, r"\midrule"]
    return "\n".join([*notes, *begin, *lines, r"\bottomrule", r"\end{tabular}", ""])


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
