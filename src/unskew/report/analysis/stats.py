"""Statistics of a run's scores: over its rounds, over seeds, and between methods.

    last, best, mean of the last ten    over the evaluated rounds of one run, from round 1
    stability                           standard deviation of the global score over the last 50 rounds
    mean and standard deviation         over seeds; sample deviation (n - 1)
    p                                   paired t-test over seeds, two-sided, corrected by Holm (Scand. J.
    Stat. 1979)

With fewer than five seeds there is no p-value, but in how many of them a method was ahead. With five the test
has little
power: a difference must be 2.8 times its own standard error for p < 0.05, and Holm's correction asks for
more, so that "not significant" means "too few seeds to tell", not "equal".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unskew.report.analysis.runs import RunData, Series
from unskew.scores import kind

NAN = float("nan")
LAST_ROUNDS = 10
"""The rounds of "mean of the last ten", which ranks methods."""
STABILITY_ROUNDS = 50
SHORT_RUN = 30
"""Runs of fewer rounds are ranked by their last one."""
FEWEST_PAIRS = 5
"""With fewer seeds a t-test says more about its assumptions than about the methods."""


@dataclass(frozen=True)
class Score:
    """Mean and sample standard deviation over n seeds; the mean is NaN for n = 0, the deviation 0 for n < 2
    and NaN where the mean is infinite."""

    mean: float
    std: float
    n: int

    @staticmethod
    def of(values: Sequence[float]) -> Score:
        """The score of one value per seed; NaN stands for a seed without a value."""
        v = np.array([x for x in values if not math.isnan(x)], dtype=float)
        if not len(v):
            return Score(NAN, NAN, 0)
        if not np.isfinite(v).all():  # the RMSE of training that diverged in one of the seeds
            return Score(float(v.mean()), NAN, len(v))
        return Score(float(v.mean()), float(v.std(ddof=1)) if len(v) > 1 else 0.0, len(v))


NO_SCORE = Score(NAN, NAN, 0)


def last_best_mean10(
    rounds: np.ndarray, values: np.ndarray, metric: str = "accuracy"
) -> tuple[float, float, float]:
    """The last value, the best one, and the mean of those evaluated in the last ten rounds; NaN if there are
    none.

    metric: the score, which says what is best.
    """
    if not len(values):
        return NAN, NAN, NAN
    best = kind(metric).best(values[~np.isnan(values)].tolist() or [NAN])
    return float(values[-1]), best, float(values[rounds > rounds[-1] - LAST_ROUNDS].mean())


def stability(rounds: np.ndarray, values: np.ndarray, over: int = STABILITY_ROUNDS) -> float:
    """Sample standard deviation over the last `over` rounds: how much a curve still jumps. NaN below two
    values."""
    tail = values[rounds > rounds[-1] - over] if len(rounds) else values
    return float(tail.std(ddof=1)) if len(tail) > 1 and np.isfinite(tail).all() else NAN


def trained_rounds(run: RunData, scope: str = "global", metric: str = "") -> Series:
    """(rounds, values) without round 0, which scores the untrained model, unless the run was evaluated in no
    other.

    A score that a run has of round 0 alone, such as the macro-F1 of a method whose clients keep weights, is
    none of what
    it trained. metric: default: the run's main score.
    """
    rounds, values = run.series(scope, metric or run.metric)
    later = rounds > 0
    return (rounds[later], values[later]) if later.any() or run.evaluated else (rounds, values)


def mean10(run: RunData, scope: str = "global", metric: str = "") -> float:
    """Mean over the last ten rounds of a score, by default the run's main one; NaN if it was never
    evaluated."""
    return last_best_mean10(*trained_rounds(run, scope, metric))[2]


def ranks_by_last_round(runs: Sequence[RunData]) -> bool:
    """Whether the last round ranks these runs and not the mean of the last ten: if one of them has fewer than
    30 rounds.

    In a short run the mean of the last ten is an average over the learning curve.
    """
    return any(run.planned < SHORT_RUN for run in runs)


def final(run: RunData, by_last: bool, scope: str = "global", metric: str = "") -> float:
    """The quantity that ranks methods, of any score: its last round, or its mean over the last ten.

    by_last: what `last_ranks` says of all runs that are compared. NaN if the score was never evaluated.
    """
    last, _, mean = last_best_mean10(*trained_rounds(run, scope, metric))
    return last if by_last else mean


def rounds_to(run: RunData, target: float) -> float:
    """The first evaluated round whose global score is the target or better; NaN if none is."""
    rounds, values = run.series("global", run.metric)
    reached = rounds[values <= target if kind(run.metric).lower else values >= target]
    return float(reached[0]) if len(reached) else NAN


def bytes_to(run: RunData, target: float) -> float:
    """Bytes of all clients, both directions, until the global score first reached the target; NaN if it never
    was."""
    first = rounds_to(run, target)
    if math.isnan(first):
        return NAN
    rounds, total = run.bytes_by_round()
    until = rounds <= first
    return float(total[until][-1]) if until.any() else 0.0


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(mean, low, high) of one value per seed, with Student's 95 % interval; both bounds are NaN below two
    values."""
    from scipy.stats import t as student

    v = np.array(values, dtype=float)
    mean = float(v.mean())
    if len(v) < 2:
        return mean, NAN, NAN
    half = float(student.ppf(0.975, len(v) - 1) * v.std(ddof=1) / math.sqrt(len(v)))
    return mean, mean - half, mean + half


def paired_p(a: Sequence[float], b: Sequence[float]) -> float:
    """Two-sided p of the paired t-test; 1 if all pairs are equal, 0 if all differ by the same, NaN below five
    pairs."""
    from scipy.stats import ttest_rel

    x, y = np.array(a, dtype=float), np.array(b, dtype=float)
    if len(x) < FEWEST_PAIRS or len(x) != len(y) or not np.isfinite([x, y]).all():
        return NAN
    difference, rounding = (
        x - y,
        1e-12 * float(np.abs([x, y]).max()),
    )  # a target's unit may make scores of any size
    if np.allclose(difference, difference[0], rtol=0, atol=rounding):  # no variance: t is 0/0 or infinite
        return 1.0 if abs(difference[0]) <= rounding else 0.0
    return float(ttest_rel(x, y).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction, in the order given; NaN stays NaN and does not count as a test."""
    p = np.array(p_values, dtype=float)
    tests = np.flatnonzero(~np.isnan(p))
    rising = tests[np.argsort(p[tests], kind="stable")]
    corrected, highest = p.copy(), 0.0
    for rank, i in enumerate(rising):
        highest = max(highest, (len(rising) - rank) * p[i])
        corrected[i] = min(1.0, highest)
    return corrected.tolist()
