"""Scores over rounds, over seeds, and between methods.

    last, best, mean of the last ten    over the evaluated rounds of one run, from round 1
    mean and standard deviation         over seeds; sample deviation (n - 1)
    stability                           deviation of the global score over the last 50 rounds
    p                                   paired t-test over seeds against the best method, two-sided, Holm-corrected

With 3 to 5 seeds the test has little power: at n = 3 a difference must be about 4.3 times its own standard error
before p < 0.05, and Holm asks for more. "Not significant" then means "not enough seeds to tell", not "equal". And
the best method was picked by the same numbers it is tested with, so a p near 0.05 is weak evidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unskew.report.read import RunData, Series

REFERENCES = ("local", "centralised")
"""Rows that bound what a method can do. They do not compete: one shares nothing, the other shares everything."""
NAN = float("nan")


@dataclass(frozen=True)
class Score:
    """Mean and sample standard deviation over n seeds; NaN and 0 where there is nothing."""

    mean: float
    std: float
    n: int

    @staticmethod
    def of(values: Sequence[float]) -> Score:
        v = np.array([x for x in values if not math.isnan(x)], dtype=float)
        if not len(v):
            return Score(NAN, NAN, 0)
        return Score(float(v.mean()), float(v.std(ddof=1)) if len(v) > 1 else 0.0, len(v))


@dataclass(frozen=True)
class Row:
    """One method over its seeds; scores in [0, 1], bytes of all clients in the whole run.

    metric: the score that is told, accuracy or dice. last, best, mean10: its global value. clients, worst: `global@client`, and personal: `personal@client`, mean of the
    last ten. to_target, rounds_to: bytes and rounds until the target was first reached, over the `reached` seeds that did. p: against the
    best; None for the best itself and for references, NaN where there are too few seeds.
    """

    method: str
    n: int
    last: Score
    best: Score
    mean10: Score
    stability: Score
    clients: Score
    worst: Score
    spread: Score
    personal: Score
    macro_f1: Score
    worst_class: Score
    up: float
    down: float
    to_target: Score
    target: float
    reached: int
    reference: bool
    leads: bool
    p: float | None
    dice_both: Score = Score(NAN, NAN, 0)
    rounds_to: Score = Score(NAN, NAN, 0)
    metric: str = "accuracy"


def last_best_mean10(rounds: np.ndarray, values: np.ndarray) -> tuple[float, float, float]:
    """The last value, the best, and the mean over those of the last ten rounds that were evaluated; NaN without any."""
    if not len(values):
        return NAN, NAN, NAN
    return float(values[-1]), float(values.max()), float(values[rounds > rounds[-1] - 10].mean())


def trained(run: RunData, scope: str = "global", metric: str = "") -> Series:
    """A series without round 0, which scores the untrained model, wherever a later round was evaluated."""
    rounds, values = run.series(scope, metric or run.metric)
    later = rounds > 0
    return (rounds[later], values[later]) if later.any() else (rounds, values)


def mean10(run: RunData, scope: str = "global", metric: str = "") -> float:
    return last_best_mean10(*trained(run, scope, metric))[2]


def stability(rounds: np.ndarray, values: np.ndarray, over: int = 50) -> float:
    """Sample standard deviation over the last `over` rounds: how much a curve still jumps. NaN below two values."""
    tail = values[rounds > rounds[-1] - over] if len(rounds) else values
    return float(tail.std(ddof=1)) if len(tail) > 1 else NAN


def rounds_to(run: RunData, target: float) -> float:
    """The first evaluated round whose global score reached the target; NaN if none did."""
    rounds, score = run.series("global", run.metric)
    reached = rounds[score >= target]
    return float(reached[0]) if len(reached) else NAN


def bytes_to(run: RunData, target: float) -> float:
    """Bytes sent both ways until the global score first reached the target; NaN if it never did."""
    first = rounds_to(run, target)
    if math.isnan(first):
        return NAN
    at, total = run.bytes_by_round()
    before = at <= first
    return float(total[before][-1]) if before.any() else 0.0


def paired_p(a: Sequence[float], b: Sequence[float]) -> float:
    """Two-sided p of the paired t-test; 1 if all pairs are equal, 0 if all differ by the same, NaN below two pairs."""
    from scipy.stats import ttest_rel

    x, y = np.array(a, dtype=float), np.array(b, dtype=float)
    if len(x) < 2 or len(x) != len(y):
        return NAN
    difference = x - y
    if np.allclose(difference, difference[0], rtol=0, atol=1e-12):
        return 1.0 if abs(difference[0]) <= 1e-12 else 0.0
    return float(ttest_rel(x, y).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction, in the order given; NaN stays NaN and counts as no test."""
    p = np.array(p_values, dtype=float)
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    found, running = p.copy(), 0.0
    for i, k in enumerate(order):
        running = max(running, (len(order) - i) * p[k])
        found[k] = min(1.0, running)
    return found.tolist()


def by_method(runs: Sequence[RunData]) -> dict[str, list[RunData]]:
    """The runs of each method, one per seed."""
    found: dict[str, list[RunData]] = {}
    for run in runs:
        found.setdefault(run.method, []).append(run)
    return found


def is_reference(group: Sequence[RunData]) -> bool:
    return group[0].config.get("method") in REFERENCES


def target_of(runs: Sequence[RunData]) -> float:
    """95 % of the best method's mean final score, to a tenth of a percent; NaN without a competing method."""
    finals = [Score.of([mean10(r) for r in g]).mean for g in by_method(runs).values() if not is_reference(g)]
    finals = [f for f in finals if not math.isnan(f)]
    return round(0.95 * max(finals), 3) if finals else NAN


def leader_of(runs: Sequence[RunData]) -> str:
    """The method with the highest mean of the last ten rounds; "" if none competes."""
    finals = {m: Score.of([mean10(r) for r in g]).mean for m, g in by_method(runs).items() if not is_reference(g)}
    return max((m for m, f in finals.items() if not math.isnan(f)), key=lambda m: finals[m], default="")


def against(runs: Sequence[RunData], leader: str) -> dict[str, float]:
    """Holm-corrected p of every other competing method against the leader, paired by seed."""
    final = {m: {r.seed: mean10(r) for r in g} for m, g in by_method(runs).items() if not is_reference(g)}
    others = [m for m in final if m != leader]
    raw = []
    for method in others:
        pairs = [(final[leader][s], final[method][s]) for s in sorted(final[leader].keys() & final[method].keys())]
        pairs = [p for p in pairs if not any(map(math.isnan, p))]
        raw.append(paired_p(*zip(*pairs)) if len(pairs) > 1 else NAN)
    return dict(zip(others, holm(raw)))


def summary_table(runs: Sequence[RunData], target: float | None = None) -> list[Row]:
    """One row per method, in the order given. The mean of the last ten rounds ranks; references do not compete."""
    target = target_of(runs) if target is None else target
    leader = leader_of(runs)
    p = against(runs, leader) if leader else {}
    return [_row(m, group, target, m == leader, p.get(m)) for m, group in by_method(runs).items()]


def _row(method: str, runs: list[RunData], target: float, leads: bool, p: float | None) -> Row:
    last, best, ten = zip(*(last_best_mean10(*trained(r)) for r in runs))

    def tail(scope: str, metric: str) -> Score:
        return Score.of([mean10(r, scope, metric) for r in runs])

    def sent(way: str) -> float:
        ends = [r.bytes_by_round(way)[1] for r in runs]
        return float(np.mean([end[-1] if len(end) else 0 for end in ends]))

    reached = Score.of([bytes_to(r, target) for r in runs])
    return Row(
        method,
        len(runs),
        last=Score.of(last),
        best=Score.of(best),
        mean10=Score.of(ten),
        stability=Score.of([stability(*trained(r)) for r in runs]),
        clients=tail("global@client", "mean"),
        worst=tail("global@client", "worst"),
        spread=tail("global@client", "std"),
        personal=tail("personal@client", "mean"),
        macro_f1=tail("global", "macro_f1"),
        worst_class=tail("global", "worst_class"),
        up=sent("up"),
        down=sent("down"),
        to_target=reached,
        target=target,
        reached=reached.n,
        reference=is_reference(runs),
        leads=leads,
        p=p,
        dice_both=tail("global", "dice_both"),
        rounds_to=Score.of([rounds_to(r, target) for r in runs]),
        metric=runs[0].metric,
    )
