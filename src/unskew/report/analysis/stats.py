"""Statistics of a run's scores: over its rounds, over seeds, and between methods.

    last, best, mean of the last ten    over the evaluated rounds of one run, from round 1
    stability                           standard deviation of the global score over the last 50 rounds
    mean and standard deviation         over seeds; sample deviation (n - 1)
    p                                   paired t-test over seeds, two-sided, corrected by Holm
                                        (Scand. J. Stat. 1979)

With fewer than five seeds there is no p-value but the number of seeds in which a method was ahead. With five
seeds the test has little power: p < 0.05 needs a difference of 2.8 times its standard error, and more after
Holm's correction, so "not significant" means "too few seeds", not "equal".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from unskew.report.analysis.runs import RunData, Series
from unskew.scores import kind

NAN = float("nan")
LAST_ROUNDS = 10
"""The number of rounds in the mean that ranks methods."""
STABILITY_ROUNDS = 50
SHORT_RUN = 30
"""Runs of fewer rounds are ranked by their last one."""
FEWEST_PAIRS = 5
"""The least number of pairs for a t-test."""


@dataclass(frozen=True)
class Score:
    """Mean and sample standard deviation over n seeds.

    The mean is NaN for n = 0; the deviation is 0 for n < 2 and NaN for an infinite mean.
    """

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
    """(last value, best value, mean over the last ten rounds); NaN without values. metric: the score."""
    if not len(values):
        return NAN, NAN, NAN
    best = kind(metric).best(values[~np.isnan(values)].tolist() or [NAN])
    return float(values[-1]), best, float(values[rounds > rounds[-1] - LAST_ROUNDS].mean())


def stability(rounds: np.ndarray, values: np.ndarray, over: int = STABILITY_ROUNDS) -> float:
    """Sample standard deviation over the last `over` rounds; NaN for fewer than two values."""
    tail = values[rounds > rounds[-1] - over] if len(rounds) else values
    return float(tail.std(ddof=1)) if len(tail) > 1 and np.isfinite(tail).all() else NAN


def trained_rounds(run: RunData, scope: str = "global", metric: str = "") -> Series:
    """(rounds, values) without round 0, the untrained model, unless no other round was evaluated.

    metric: default: the run's main score. A score of round 0 alone in a run with other evaluated rounds, such
    as the macro-F1 of a method with private weights, is left out as well.
    """
    rounds, values = run.series(scope, metric or run.metric)
    later = rounds > 0
    return (rounds[later], values[later]) if later.any() or run.evaluated else (rounds, values)


def ranks_by_last_round(runs: Sequence[RunData]) -> bool:
    """Whether the last round ranks these runs, because one of them has fewer than 30 rounds.

    In a short run the mean of the last ten rounds would average over the learning curve.
    """
    return any(run.planned < SHORT_RUN for run in runs)


def final(run: RunData, by_last: bool, scope: str = "global", metric: str = "") -> float:
    """The value of a score that ranks methods: of the last round, or the mean over the last ten.

    by_last: `ranks_by_last_round` of all compared runs. NaN without values.
    """
    last, _, mean = last_best_mean10(*trained_rounds(run, scope, metric))
    return last if by_last else mean


def rounds_to(run: RunData, target: float) -> float:
    """The first evaluated round with a global score of the target or better; NaN without one."""
    rounds, values = run.series("global", run.metric)
    reached = rounds[values <= target if kind(run.metric).lower else values >= target]
    return float(reached[0]) if len(reached) else NAN


def bytes_to(run: RunData, target: float) -> float:
    """Bytes of all clients in both directions until the global score first reached the target, or NaN."""
    first = rounds_to(run, target)
    if math.isnan(first):
        return NAN
    rounds, total = run.bytes_by_round()
    until = rounds <= first
    return float(total[until][-1]) if until.any() else 0.0


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(mean, low, high) of one value per seed, with Student's 95 % interval; its bounds are NaN for one
    value."""
    from scipy import stats

    v = np.array(values, dtype=float)
    mean = float(v.mean())
    if len(v) < 2:
        return mean, NAN, NAN
    half = float(stats.t.ppf(0.975, len(v) - 1) * v.std(ddof=1) / math.sqrt(len(v)))
    return mean, mean - half, mean + half


def common_seeds(a: Mapping[int, float], b: Mapping[int, float]) -> tuple[np.ndarray, np.ndarray]:
    """The values [S] and [S] of the seeds in which both are numbers, by rising seed."""
    seeds = [s for s in sorted(a.keys() & b.keys()) if not (math.isnan(a[s]) or math.isnan(b[s]))]
    return np.array([a[s] for s in seeds]), np.array([b[s] for s in seeds])


def paired_p(a: Sequence[float], b: Sequence[float]) -> float:
    """Two-sided p of the paired t-test; NaN for fewer than five pairs.

    It is 1 if all pairs are equal, and NaN if all differences are equal and not 0: such seeds vary nothing
    that matters, such as five runs from the same weights, and tell nothing of chance.
    """
    from scipy.stats import ttest_rel

    x, y = np.array(a, dtype=float), np.array(b, dtype=float)
    if len(x) < FEWEST_PAIRS or len(x) != len(y) or not np.isfinite([x, y]).all():
        return NAN
    difference = x - y
    rounding = 1e-12 * float(np.abs([x, y]).max())  # scores in a target's unit may have any size
    if np.allclose(difference, difference[0], rtol=0, atol=rounding):  # no variance: t is 0/0 or infinite
        return 1.0 if abs(difference[0]) <= rounding else NAN
    return float(ttest_rel(x, y).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction, in order; NaN stays NaN and does not count as a test."""
    p = np.array(p_values, dtype=float)
    tests = np.flatnonzero(~np.isnan(p))
    rising = tests[np.argsort(p[tests], kind="stable")]
    corrected, highest = p.copy(), 0.0
    for rank, i in enumerate(rising):
        highest = max(highest, (len(rising) - rank) * p[i])
        corrected[i] = min(1.0, highest)
    return corrected.tolist()
