"""The final table: for a terminal, for a pipe, as JSON, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from unskew.report.numbers import both_ways, noun, percent, plural, to_target, verdict
from unskew.report.stats import Row


def groups(rows: Sequence[Row]) -> tuple[tuple[str, int], ...]:
    """What stands over the columns: a title and how many columns it spans."""
    score = f"global {noun(_metric(rows))}"
    return (("", 1), (score, 3), ("global@client", 2), ("personal@client", 1), ("bytes", 2), ("", 1))


def _metric(rows: Sequence[Row]) -> str:
    return rows[0].metric if rows else "accuracy"


def head(rows: Sequence[Row]) -> tuple[str, ...]:
    target = next((r.target for r in rows if not math.isnan(r.target)), math.nan)
    reach = "MB to target" if math.isnan(target) else f"MB to {100 * target:.1f}\u00a0%"
    return ("method", "last", "best", "mean-10", "mean", "worst", "mean", "MB up+down", reach, "vs best")


def full_head(rows: Sequence[Row]) -> tuple[str, ...]:
    """The same, where nothing can stand over the columns."""
    method, *_, both, reach, p = head(rows)
    scores = ("global last", "global best", "global mean-10", "clients mean", "clients worst", "personal mean")
    return (method, *scores, both, reach, p)


def cells(row: Row) -> list[str]:
    scores = (row.last, row.best, row.mean10, row.clients, row.worst, row.personal)
    return [row.method, *map(percent, scores), both_ways(row), to_target(row), verdict(row)]


def note(rows: Sequence[Row]) -> str:
    """What the numbers are, in sentences."""
    n = max((r.n for r in rows), default=0)
    spread = f"mean ± sample standard deviation over {n} seeds" if n > 1 else "one seed, so without a deviation"
    lines = [
        f"{noun(_metric(rows)).capitalize()} in %, {spread}; mean-10, clients and personal: mean of the last 10 rounds, of those evaluated.",
        "clients: the global model on each client's test rows. personal: the client's own model there.",
    ]
    if sum(not r.reference for r in rows) > 1:
        lines.append(
            "vs best: paired t-test over seeds on the mean of the last 10 rounds, Holm-corrected. "
            + ("It needs two seeds or more." if n < 2 else "With few seeds it finds only large differences.")
        )
    if any(r.reference for r in rows):
        lines.append("local and centralised are references: they do not compete.")
    return "\n".join(lines)


def plain(rows: Sequence[Row]) -> str:
    """Aligned columns of text."""
    table = [list(full_head(rows)), *map(cells, rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    lines = ["  ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(t, widths))) for t in table]
    lines = [line.rstrip() for line in lines]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:], note(rows)])


def rich_table(rows: Sequence[Row]) -> Any:
    """A rich.table.Table; the best method bold, references dim."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, caption=Text(note(rows)), caption_justify="left", header_style="bold")
    for i, title in enumerate(full_head(rows)):
        table.add_column(title, justify="right" if i else "left", no_wrap=i == 0)
    for row in rows:
        table.add_row(*map(Text, cells(row)), style="bold" if row.leads else "dim" if row.reference else None)
    return table


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Dictionaries json can write: NaN becomes null."""
    return [_clean(asdict(r)) for r in rows]


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _clean(v) for k, v in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def latex(rows: Sequence[Row]) -> str:
    """A booktabs table; the best method in bold, references below a rule."""
    lines = [r"\begin{tabular}{l" + "r" * (len(head(rows)) - 1) + "}", r"\toprule"]
    lines.append(" & ".join(map(_tex, full_head(rows))) + r" \\")
    for group in ([r for r in rows if not r.reference], [r for r in rows if r.reference]):
        if group:
            lines += [r"\midrule", *(_tex_line(r) for r in group)]
    said = [f"% {line}" for line in note(rows).splitlines()]
    return "\n".join([*said, *lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _tex_line(row: Row) -> str:
    name, *rest = map(_tex, cells(row))
    return " & ".join([rf"\textbf{{{name}}}" if row.leads else name, *rest]) + r" \\"


_TEX = {c: "\\" + c for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "\u00a0": "~", "±": r"$\pm$", "–": "--", "<": "$<$", ">": "$>$",
}  # fmt: skip


def _tex(text: str) -> str:
    return "".join(_TEX.get(c, c) for c in text)


SCORES = (
    "last",
    "best",
    "mean10",
    "stability",
    "clients",
    "worst",
    "spread",
    "personal",
    "macro_f1",
    "worst_class",
    "dice_both",
    "to_target",
    "rounds_to",
)


def as_csv(rows: Sequence[Row]) -> str:
    """One line per method, nothing rounded; scores in [0, 1], bytes of all clients."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = [f"{name}{part}" for name in SCORES for part in ("", "_std")]
    writer.writerow(
        ["method", "metric", "n", *columns, "bytes_up", "bytes_down", "target", "reached", "p", "reference", "leads"]
    )
    for r in rows:
        scores = [v for name in SCORES for v in (getattr(r, name).mean, getattr(r, name).std)]
        facts = [r.up, r.down, r.target, r.reached, r.p, r.reference, r.leads]
        writer.writerow([r.method, r.metric, r.n, *("" if v is None or v != v else v for v in [*scores, *facts])])
    return out.getvalue()


def caption(rows: Sequence[Row]) -> str:
    """For screen readers, and over the printed table."""
    best = next((r for r in rows if r.leads), None)
    led = f"; best: {best.method}, {percent(best.mean10)} %" if best and len(rows) > 1 else ""
    what = "accuracies" if _metric(rows) == "accuracy" else noun(_metric(rows))
    return f"{plural(len(rows), 'method')}, {what} in percent{led}"
