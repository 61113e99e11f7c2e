"""Scores over rounds, over seeds, and between methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unskew.report.read import RunData

REFERENCES = ("local", "centralised")
SCOPES = (("global", "accuracy"), ("global@client", "mean"), ("personal@client", "mean"))


@dataclass(frozen=True)
class Score:
    """Mean and sample standard deviation over n seeds."""

    mean: float
    std: float
    n: int

    @staticmethod
    def of(values: Sequence[float]) -> Score:
        v = np.array([x for x in values if x == x], dtype=float)
        if not len(v):
            return Score(float("nan"), float("nan"), 0)
        return Score(float(v.mean()), float(v.std(ddof=1)) if len(v) > 1 else 0.0, len(v))


@dataclass(frozen=True)
class Row:
    """One method of a comparison. p: of the paired t-test against the best, after Holm; None for the best itself."""

    method: str
    n: int
    last: Score
    best: Score
    mean10: Score
    stability: Score
    clients: Score
    worst: Score
    personal: Score
    up: float
    down: float
    to_target: Score
    reached: int
    reference: bool
    leads: bool
    p: float | None


def last_best_mean10(values: np.ndarray) -> tuple[float, float, float]:
    if not len(values):
        return (float("nan"),) * 3
    return float(values[-1]), float(values.max()), float(values[-10:].mean())


def stability(rounds: np.ndarray, values: np.ndarray, over: int = 50) -> float:
    """Standard deviation of accuracy over the last 50 rounds: how much a curve still jumps."""
    tail = values[rounds > rounds[-1] - over] if len(rounds) else values
    return float(tail.std(ddof=1)) if len(tail) > 1 else float("nan")


def bytes_to(run: RunData, target: float) -> float:
    """Bytes sent both ways until the global accuracy first reached the target; NaN if it never did."""
    rounds, accuracy = run.series("global", "accuracy")
    reached = rounds[accuracy >= target]
    if not len(reached):
        return float("nan")
    at, total = run.bytes_by_round()
    return float(total[at <= reached[0]][-1]) if (at <= reached[0]).any() else 0.0


def paired_p(a: Sequence[float], b: Sequence[float]) -> float:
    """Two-sided paired t-test; 1 where all differences are equal to zero, NaN below two pairs."""
    from scipy.stats import ttest_rel

    x, y = np.array(a), np.array(b)
    if len(x) < 2 or len(x) != len(y):
        return float("nan")
    difference = x - y
    if np.allclose(difference, difference[0]):
        return 1.0 if np.allclose(difference, 0) else 0.0
    return float(ttest_rel(x, y).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction; NaN stays NaN and counts as no test."""
    p = np.array(p_values, dtype=float)
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    found, running = p.copy(), 0.0
    for i, k in enumerate(order):
        running = max(running, (len(order) - i) * p[k])
        found[k] = min(1.0, running)
    return found.tolist()


def by_method(runs: Sequence[RunData]) -> dict[str, list[RunData]]:
    found: dict[str, list[RunData]] = {}
    for run in runs:
        found.setdefault(run.method, []).append(run)
    return found


def target_of(runs: Sequence[RunData]) -> float:
    """95 % of the best method's mean final accuracy."""
    finals = [np.mean([last_best_mean10(r.series("global", "accuracy")[1])[2] for r in group]) for m, group in by_method(runs).items() if m not in REFERENCES]
    return round(0.95 * float(np.nanmax(finals)), 3) if finals else float("nan")


def summary_table(runs: Sequence[RunData], target: float | None = None) -> list[Row]:
    """One row per method. Methods are ranked by the mean of the last ten rounds; references do not compete."""
    groups = by_method(runs)
    target = target_of(runs) if target is None else target
    final = {m: {r.seed: last_best_mean10(r.series("global", "accuracy")[1])[2] for r in g} for m, g in groups.items()}
    competing = [m for m in groups if m not in REFERENCES and all(v == v for v in final[m].values())]
    leader = max(competing, key=lambda m: np.mean(list(final[m].values())), default="")
    others = [m for m in competing if m != leader]
    raw = []
    for m in others:
        seeds = sorted(final[m].keys() & final[leader].keys())
        raw.append(paired_p([final[leader][s] for s in seeds], [final[m][s] for s in seeds]))
    p = dict(zip(others, holm(raw)))
    return [_row(m, group, target, m == leader, p.get(m)) for m, group in groups.items()]


def _row(method: str, runs: list[RunData], target: float, leads: bool, p: float | None) -> Row:
    scores = [last_best_mean10(r.series("global", "accuracy")[1]) for r in runs]
    tail = {s: Score.of([last_best_mean10(r.series(*s)[1])[2] for r in runs]) for s in SCOPES}
    reached = [bytes_to(r, target) for r in runs]
    ways = [float(np.mean([b[-1] if len(b := r.bytes_by_round(w)[1]) else 0 for r in runs])) for w in ("up", "down")]
    return Row(
        method,
        len(runs),
        Score.of([s[0] for s in scores]),
        Score.of([s[1] for s in scores]),
        Score.of([s[2] for s in scores]),
        Score.of([stability(*r.series("global", "accuracy")) for r in runs]),
        tail["global@client", "mean"],
        Score.of([last_best_mean10(r.series("global@client", "worst")[1])[2] for r in runs]),
        tail["personal@client", "mean"],
        *ways,
        Score.of(reached),
        sum(b == b for b in reached),
        method in REFERENCES,
        leads,
        p,
    )
