"""A lower bound on epsilon from one run (Steinke, Nasr and Jagielski, NeurIPS 2023, theorem 5.2).

Each of m canaries is in the data with probability 1/2. An auditor who sees the outcome guesses of r of them whether they are,
and v guesses are right. If the run is (eps, delta)-DP, guesses are no better than coins of q = e^eps / (1 + e^eps), but for delta:
    P[V >= v] <= beta + 2 m delta alpha,     beta = P[B >= v],  B ~ Binomial(r, q)
    alpha = max_{1 <= i <= m} P[v > B >= v - i] / i
The bound is the largest eps for which that is at most 1 - confidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import numpy as np
from scipy.optimize import brentq
from scipy.stats import binom

MOST = 60.0
"""The largest epsilon that is told; above it nothing is protected anyway."""


@dataclass(frozen=True)
class Claim:
    """That a run is (epsilon, delta)-DP for one canary more or less; an infinite epsilon claims nothing."""

    epsilon: float
    delta: float

    def replaced(self) -> Claim:
        """What it says where a canary does not come or go with its unit, but changes it: the unit goes, and another comes.

        Two steps of a client more or less lie between an update with a sample and the same client's update without it.
        """
        if self.epsilon > MOST:
            return NOTHING
        delta = (1 + math.exp(self.epsilon)) * self.delta
        return Claim(2 * self.epsilon, delta) if delta < 1 else NOTHING


NOTHING = Claim(math.inf, 0.0)


def chance(counts: tuple[int, int, int], epsilon: float, delta: float) -> float:
    """The most likely that (epsilon, delta)-DP makes as many right guesses. counts: canaries m, guesses r, right ones v."""
    m, r, v = counts
    q = 1 / (1 + math.exp(-epsilon))
    beta = float(binom.sf(v - 1, r, q))
    if not delta or not v:
        return min(1.0, beta)
    within_V = np.cumsum(binom.pmf(np.arange(v - 1, -1, -1), r, q))  # P[v > B >= v - i] for i = 1 .. v
    alpha = float((within_V / np.arange(1, v + 1)).max())
    return min(1.0, beta + 2 * m * delta * alpha)


def bound(counts: tuple[int, int, int], delta: float, confidence: float = 0.95) -> float:
    """The largest epsilon that so many right guesses refute at this confidence; 0 where they refute none."""
    risk = 1 - confidence
    if chance(counts, 0.0, delta) > risk:
        return 0.0
    if chance(counts, MOST, delta) <= risk:
        return MOST
    return cast(float, brentq(lambda epsilon: chance(counts, epsilon, delta) - risk, 0.0, MOST, xtol=1e-9))


def guessed(scores_M: np.ndarray, inside_M: np.ndarray, share: float) -> tuple[int, int, int]:
    """(m, r, v): the share of canaries with the highest scores is taken for inside, as many of the lowest for outside."""
    m = len(scores_M)
    half = min(m // 2, max(1, round(share * m / 2)))  # nothing is guessed of one canary, and of none twice
    order = np.argsort(scores_M, kind="stable")
    right = int(inside_M[order[m - half :]].sum() + (~inside_M[order[:half]]).sum())
    return m, 2 * half, right
