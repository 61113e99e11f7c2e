"""How numbers are written: accuracies in percent with one decimal, bytes with three digits, p as in papers."""

from __future__ import annotations

import math

from unskew.report.stats import Row, Score

MISSING = "–"


def noun(metric: str) -> str:
    """What a score is called inside a sentence."""
    return "Dice" if metric == "dice" else metric


def percent(s: Score, std: bool = True) -> str:
    """`90.2 ± 0.8`, or `90.2` for a single seed."""
    if not s.n:
        return MISSING
    return f"{100 * s.mean:.1f} ± {100 * s.std:.1f}" if std and s.n > 1 else f"{100 * s.mean:.1f}"


def megabytes(value: float) -> str:
    """In MB, three digits: 0.012, 6.13, 61.3, 1,234."""
    mega = value / 1e6
    if math.isnan(mega):
        return MISSING
    if mega == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(mega)))
    return f"{mega:,.{min(decimals, 4)}f}"


def size(value: float) -> str:
    """With its unit, three digits: 61.4 KB."""
    if math.isnan(value):
        return MISSING
    for unit in ("B", "KB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{value:.0f} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def p_value(p: float) -> str:
    if p < 0.001:
        return "p < .001"
    return f"p = {p:.3f}".replace("0.", ".", 1) if p < 0.995 else "p = 1"


def verdict(row: Row) -> str:
    """Against the best method: `best`, `p = .012`, `p = .210 (tie)`, `n too small`, `reference`."""
    if row.reference:
        return "reference"
    if row.leads:
        return "best"
    if row.p is None or math.isnan(row.p):
        return "n too small" if row.mean10.n else MISSING
    return p_value(row.p) + (" (tie)" if row.p >= 0.05 else "")


def to_target(row: Row) -> str:
    """MB until the target; in brackets the seeds that reached it, where not all did."""
    if row.reference:
        return MISSING
    if not row.reached:
        return "not reached"
    return megabytes(row.to_target.mean) + (f" ({row.reached}/{row.n})" if row.reached < row.n else "")


def both_ways(row: Row) -> str:
    return MISSING if row.reference else megabytes(row.up + row.down)


def whole(value: float) -> str:
    return f"{value:,.0f}"


def plural(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'s' if n != 1 else ''}"
