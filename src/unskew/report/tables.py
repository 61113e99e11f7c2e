"""The final table: for a terminal, for a pipe, as JSON, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from unskew.report.stats import Row, Score

HEAD = ("method", "global: last", "best", "mean of last 10", "clients", "worst client", "own model", "MB up", "MB down", "MB to target", "vs best")


def percent(s: Score) -> str:
    if not s.n:
        return "-"
    return f"{100 * s.mean:.1f} ± {100 * s.std:.1f}" if s.n > 1 else f"{100 * s.mean:.1f}"


def megabytes(value: float) -> str:
    return f"{value / 1e6:.3g}" if value < 1e9 else f"{value / 1e6:,.0f}"


def verdict(row: Row) -> str:
    if row.reference:
        return "reference"
    if row.leads:
        return "best"
    if row.p is None or row.p != row.p:
        return "n too small"
    return f"p={row.p:.3f}" if row.p >= 0.001 else "p<0.001"


def cells(row: Row) -> list[str]:
    to_target = f"{megabytes(row.to_target.mean)} ({row.reached}/{row.n})" if row.reached else "not reached"
    return [
        row.method,
        *map(percent, (row.last, row.best, row.mean10, row.clients, row.worst, row.personal)),
        megabytes(row.up),
        megabytes(row.down),
        "" if row.reference else to_target,
        verdict(row),
    ]


def plain(rows: Sequence[Row]) -> str:
    """Aligned columns of text, in percent; n seeds."""
    table = [list(HEAD), *map(cells, rows)]
    widths = [max(len(r[i]) for r in table) for i in range(len(HEAD))]
    lines = ["  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths))).rstrip() for r in table]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:], note(rows)])


def note(rows: Sequence[Row]) -> str:
    n = max((r.n for r in rows), default=0)
    return (
        f"accuracy in %, mean ± standard deviation over {n} seed{'s' * (n != 1)}; clients, worst client and own model: mean of the last 10 rounds.\n"
        "vs best: paired t-test over seeds on the mean of the last 10 rounds, Holm-corrected; few seeds find only large differences."
    )


def rich_table(rows: Sequence[Row]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, caption=note(rows), caption_justify="left", header_style="bold")
    for i, title in enumerate(HEAD):
        table.add_column(title, justify="right" if i else "left")
    for row in rows:
        table.add_row(*cells(row), style="bold" if row.leads else "dim" if row.reference else None)
    return table


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [_clean(asdict(r)) for r in rows]


def _clean(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {k: _clean(v) for k, v in value.items()}
    return None if isinstance(value, float) and value != value else value


def latex(rows: Sequence[Row]) -> str:
    """A booktabs table of the accuracies."""
    lines = [r"\begin{tabular}{lrrr}", r"\toprule", r"method & last & best & mean of last 10 \\", r"\midrule"]
    for row in rows:
        name = row.method.replace("_", r"\_")
        found = [percent(s).replace("±", r"$\pm$") for s in (row.last, row.best, row.mean10)]
        lines.append(" & ".join([rf"\textbf{{{name}}}" if row.leads else name, *found]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def as_csv(rows: Sequence[Row]) -> str:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["method", "n", "last", "last_std", "best", "best_std", "mean10", "mean10_std", "clients", "worst", "bytes_up", "bytes_down"])
    for r in rows:
        writer.writerow(
            [r.method, r.n, *(v for s in (r.last, r.best, r.mean10) for v in (s.mean, s.std)), r.clients.mean, r.worst.mean, r.up, r.down]
        )
    return out.getvalue()
