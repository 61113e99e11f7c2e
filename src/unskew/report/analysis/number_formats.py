"""Formats of numbers: scores in percent with one decimal or in their own unit, bytes with three digits, p."""

from __future__ import annotations

import math

from unskew.report.analysis.stats import Score
from unskew.scores import kind, significant

MISSING = "–"


def noun(metric: str) -> str:
    """A score's name inside a sentence: "accuracy", "Dice", "RMSE"."""
    return kind(metric).title


def capitalise(text: str) -> str:
    """The text with a capital first letter: "Accuracy", "RMSE"."""
    return text[:1].upper() + text[1:]


def digits(score: Score, metric: str, std: bool = True) -> str:
    """`90.2 ± 0.8` in percent, `57.33 ± 1.2` in a score's own unit.

    There is no deviation for one seed, or if `std` is False.
    """
    if not score.n:
        return MISSING
    mean = kind(metric).digits(score.mean)
    deviation = kind(metric).digits(score.std) if kind(metric).share else significant(score.std, 2)
    return f"{mean} ± {deviation}" if std and _spread(score) else mean


def with_unit(value: float, metric: str) -> str:
    """A single value with its unit: `90.2 %`, `57.3`."""
    return MISSING if math.isnan(value) else f"{kind(metric).digits(value)}{kind(metric).unit}"


def three_digits(score: Score) -> str:
    """`0.412 ± 0.031`, or `0.412` for one seed."""
    if not score.n:
        return MISSING
    mean = significant(score.mean, 3)
    return f"{mean} ± {significant(score.std, 2)}" if _spread(score) else mean


def _spread(score: Score) -> bool:
    """Whether the score has a deviation: of several seeds with finite scores."""
    return score.n > 1 and math.isfinite(score.std)


def megabytes(value: float) -> str:
    """Bytes in MB with three digits and no unit: 0.012, 6.13, 61.3, 1,234."""
    mega = value / 1e6
    if math.isnan(mega):
        return MISSING
    if mega == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(mega)))
    return f"{mega:,.{min(decimals, 4)}f}"


def size(value: float) -> str:
    """Bytes with their unit and three digits: 61.4 KB."""
    if math.isnan(value):
        return MISSING
    for unit in ("B", "KB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{value:.0f} B" if unit == "B" else f"{significant(value, 3)} {unit}"
        value /= 1000
    return f"{significant(value, 3)} TB"


def p_value(p: float) -> str:
    """`p < .001`, `p = .012`, `p = 1`."""
    if p < 0.001:
        return "p < .001"
    return f"p = {p:.3f}".replace("0.", ".", 1) if p < 0.995 else "p = 1"


def whole_number(value: float) -> str:
    """A whole number with thousands separated: 1,234."""
    return f"{value:,.0f}"


def plural(n: int, noun: str) -> str:
    """`1 client`, `1,200 clients`."""
    return f"{n:,} {noun}{'s' if n != 1 else ''}"


def clock(seconds: float) -> str:
    """A duration: `4:05` minutes and seconds, `1:04:05` with hours."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
