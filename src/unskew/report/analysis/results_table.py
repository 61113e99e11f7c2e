"""The final table as text (for a terminal, a pipe, JSON, LaTeX and CSV), and the notes below it.

The notes explain the numbers and name reasons for doubt.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from unskew.report.analysis.frames import flat
from unskew.report.analysis.number_formats import (
    MISSING,
    capitalise,
    digits,
    megabytes,
    p_value,
    plural,
    with_unit,
)
from unskew.report.analysis.stats import FEWEST_PAIRS, SHORT_RUN
from unskew.report.analysis.summary import MethodSummary, ScopedScore, benefit_sentence
from unskew.round.run import REFERENCES
from unskew.scores import kind, of_one_target, significant

Summaries = Sequence[MethodSummary]


def note(summaries: Summaries) -> str:
    """Sentences that explain the numbers, one per line."""
    n, which = max((s.n for s in summaries), default=0), kind(_metric(summaries))
    by_last = any(s.by_last for s in summaries)
    over, unit = "one seed, so no standard deviation", "in %" if which.share else unit_of(summaries)
    if n > 1:
        over = f"mean ± sample standard deviation over {_seeds(summaries)}"
    rounds = "mean-10, clients and personal are means over the evaluated rounds among the last 10."
    if by_last:
        rounds = f"With fewer than {SHORT_RUN} rounds all scores but best are those of the last round."
    lower = ", lower is better" if which.lower and not which.share else ""
    lines = [
        f"{capitalise(which.title)} {unit}{lower}, {over}. {rounds}",
        "clients (global@client): the global model on each client's own test samples. personal"
        " (personal@client): each client's own model on the same samples.",
    ]
    if sum(not s.reference for s in summaries) > 1:
        ranks = "the last round" if by_last else "the mean of the last 10 rounds"
        what = "points" if which.share else "how much better (+) or worse (-)"
        text = f"{what} by {ranks}, and in how many seeds the best was ahead; a p-value needs {FEWEST_PAIRS}"
        if n >= FEWEST_PAIRS:
            text = f"paired t-test over seeds on {ranks}, where seeds differ, corrected by Holm"
            text += "; it detects large gaps only"
        lines.append(f"vs best: {text}{' seeds' if n < FEWEST_PAIRS else ''}.")
    best = next((s.method for s in summaries if s.leads), "")
    lines += [
        *remarks(summaries),
        *(
            f"{s.method} has a final score in {s.final.n} of {s.n} seeds, and its means are over these."
            for s in summaries
            if 0 < s.final.n < s.n
        ),
        *(
            f"{s.method} and {best} are paired in {s.gap.seeds} of {plural(s.n, 'seed')}."
            for s in summaries
            if s.gap is not None and s.gap.seeds < s.n
        ),
    ]
    if any(s.reference for s in summaries):
        lines.append(f"{' and '.join(REFERENCES)} are references: they do not compete.")
    return "\n".join(lines)


def unit_of(summaries: Summaries) -> str:
    """The unit of scores that are no shares: the target's, or of several the standard deviations."""
    several = any(of_one_target(metric) for s in summaries for metric in s.further)
    if several:
        return "in each target's standard deviation (those of one target in its own unit)"
    return "in the target's unit"


def _seeds(summaries: Summaries) -> str:
    """`3 seeds`, or the number of each method if they differ."""
    counts = {s.method: s.n for s in summaries}
    if len(set(counts.values())) == 1:
        return f"{summaries[0].n} seeds"
    return f"different numbers of seeds: {', '.join(f'{method} {n}' for method, n in counts.items())}"


def remarks(summaries: Summaries) -> list[str]:
    """The sentences on terms of scoring, each once."""
    return list(dict.fromkeys(text for s in summaries for text in s.remarks))


def doubts(summaries: Summaries) -> list[str]:
    """A sentence for every method with doubtful scores."""
    return [s.doubt for s in summaries if s.doubt]


def _metric(summaries: Summaries) -> str:
    return summaries[0].metric if summaries else "accuracy"


def headings(summaries: Summaries) -> tuple[str, ...]:
    """The headings of the table's columns, each score with its scope."""
    target = next((s.target for s in summaries if not math.isnan(s.target)), math.nan)
    to_target = "target" if math.isnan(target) else _unbroken(with_unit(target, _metric(summaries)))
    of_global = ("global last", "global best", "global mean-10")
    at_clients = ("clients mean", "clients worst", "personal mean")
    if any(s.by_last for s in summaries):
        of_global, at_clients = of_global[:2], tuple(f"{title}, last" for title in at_clients)
    return ("method", *of_global, *at_clients, "MB up+down", f"MB to {to_target}", "vs best")


def cells(summary: MethodSummary) -> list[str]:
    """One method's row of the table, a text per column."""
    s = summary
    of_global = (s.last, s.best) if s.by_last else (s.last, s.best, s.mean10)
    scores = (*of_global, s.clients, s.worst, s.personal)
    sent = MISSING if s.reference else megabytes(s.up + s.down)
    return [s.method, *(digits(score, s.metric) for score in scores), sent, to_target(s), verdict(s)]


def _unbroken(text: str) -> str:
    """A value and its unit with a no-break space."""
    return text.replace(" ", "\u00a0")


def verdict(summary: MethodSummary) -> str:
    """The comparison with the best method: `best`, `p = .012`, `p = .210 (tie)`, `-2.3 (3/3)` with fewer than
    five seeds, `not trained`, or `reference`.

    A difference is negative if the method is worse, also for scores that are better when lower.
    """
    if summary.reference:
        return "reference"
    if summary.leads:
        return "best"
    if not summary.mean10.n:
        return "not trained" if summary.untrained else MISSING
    gap = summary.gap
    if gap is None or not gap.seeds:
        return MISSING
    if math.isnan(gap.p):
        share = kind(summary.metric).share
        behind = f"{-100 * gap.behind:+z.1f}" if share else significant(-gap.behind, 3, signed=True)
        return f"{behind} ({gap.lost}/{gap.seeds})"
    return p_value(gap.p) + (" (tie)" if gap.p >= 0.05 else "")


def to_target(summary: MethodSummary) -> str:
    """MB until the target, with the share of seeds that reached it in brackets, unless all did."""
    s = summary
    if s.reference:
        return MISSING
    if not s.reached:
        return "not reached"
    return megabytes(s.to_target.mean) + (f" ({s.reached}/{s.n})" if s.reached < s.n else "")


GAP = 2
"""Characters between two columns of the text table."""


def plain(summaries: Summaries, width: int | None = None) -> str:
    """The table as aligned columns of text, its note, and whether federating pays.

    width: of a terminal, in characters; the columns that do not fit into it are a second table below, with
    the methods again. None: no limit.
    """
    columns = list(zip(headings(summaries), *map(cells, summaries)))
    widths = [max(map(len, column)) for column in columns]
    blocks = [[0]]
    for i in range(1, len(columns)):
        needed = sum(widths[k] + GAP for k in blocks[-1]) + widths[i]
        if width is not None and needed > width and len(blocks[-1]) > 1:
            blocks.append([0])
        blocks[-1].append(i)
    lines = list[str]()
    for block in blocks:
        padded = [
            [cell.rjust(widths[i]) if i else cell.ljust(widths[i]) for cell in columns[i]] for i in block
        ]
        rows = [(" " * GAP).join(row) for row in zip(*padded)]
        lines += [rows[0], "-" * max(map(len, rows)), *rows[1:]]
    lines += [note(summaries), *_extra_lines(summaries), benefit_sentence(summaries)]
    return "\n".join([*filter(None, lines), *(f"Warning: {text}" for text in doubts(summaries))])


def _extra_lines(summaries: Summaries) -> list[str]:
    """A line for each requested metric and method with the value in every scope."""
    metrics = dict.fromkeys(metric for s in summaries for metric in s.further)
    return [
        f"{kind(metric).of(kind(metric).title)}, {s.method}:"
        f" {', '.join(_in_scope(metric, *one) for one in s.further[metric].items())}"
        for metric in metrics
        for s in summaries
        if s.further.get(metric)
    ]


def _in_scope(metric: str, scope: str, scoped: ScopedScore) -> str:
    over = f" (mean over {scoped.defined:,} of {scoped.clients:,} clients)" if scoped.clients else ""
    return f"{scope} {digits(scoped.score, metric)}{over}"


def as_json(summaries: Summaries) -> list[dict[str, Any]]:
    """A dictionary of JSON values per method; NaN becomes null."""
    return [_without_nan(asdict(s)) for s in summaries]


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nan(v) for k, v in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def latex(summaries: Summaries) -> str:
    """A booktabs table; the best method in bold, references below a rule."""
    head = headings(summaries)
    lines = [r"\begin{tabular}{l" + "r" * (len(head) - 1) + "}", r"\toprule"]
    lines.append(" & ".join(map(_tex, head)) + r" \\")
    for group in ([s for s in summaries if not s.reference], [s for s in summaries if s.reference]):
        if group:
            lines += [r"\midrule", *map(_tex_line, group)]
    comment = [f"% {line}" for line in note(summaries).splitlines()]
    return "\n".join([*comment, *lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _tex_line(summary: MethodSummary) -> str:
    name, *rest = map(_tex, cells(summary))
    return " & ".join([rf"\textbf{{{name}}}" if summary.leads else name, *rest]) + r" \\"


_TEX = {c: "\\" + c for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "\u00a0": "~", "±": r"$\pm$", "–": "--", "<": "$<$", ">": "$>$",
}  # fmt: skip


def _tex(text: str) -> str:
    return "".join(_TEX.get(c, c) for c in text)


def as_csv(summaries: Summaries) -> str:
    """A line per method with the values of `as_json` without rounding, in columns such as last.mean."""
    rows = [flat(row) for row in as_json(summaries)]
    columns = dict.fromkeys(name for row in rows for name, value in row.items() if value is not None)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(columns), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
