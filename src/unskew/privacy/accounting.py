"""Gaussian differential privacy (Dong, Roth & Su, JRSS-B 2022, arXiv 1905.02383): exact conversion, exact composition.

A Gaussian mechanism of L2 sensitivity D and noise s is mu-GDP with mu = D / s; k of them together are sqrt(k) mu-GDP;
    delta(eps) = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2)
Both are exact. Renyi bounds, which are looser, are here to check them against.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr


def delta_of(epsilon: float, mu: float) -> float:
    """The smallest delta for which mu-GDP implies (epsilon, delta)-DP; 0 for mu = 0."""
    if mu == 0:
        return 0.0
    first = log_ndtr(-epsilon / mu + mu / 2)
    second = epsilon + log_ndtr(-epsilon / mu - mu / 2)
    return float(math.exp(first) * -math.expm1(min(0.0, second - first)))


def epsilon_of(mu: float, delta: float) -> float:
    """The smallest epsilon for which mu-GDP implies (epsilon, delta)-DP; inf where mu is. Raises ValueError for a delta outside (0, 1)."""
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie between 0 and 1, got {delta}")
    if math.isinf(mu):
        return math.inf
    if delta_of(0.0, mu) <= delta:
        return 0.0
    high = 1.0
    while delta_of(high, mu) > delta:
        high *= 2
    return cast(float, brentq(lambda e: delta_of(e, mu) - delta, 0.0, high, xtol=1e-12))


def composed(mu: float, times: float) -> float:
    """mu of `times` releases, each mu-GDP, about the same records."""
    return math.sqrt(times) * mu


def epsilon_by_renyi(mu: float, delta: float) -> float:
    """An upper bound on `epsilon_of`, by Renyi divergences (order a: a mu^2 / 2) and their best conversion."""
    orders = np.concatenate([np.linspace(1.01, 64, 6400), np.arange(64, 4096)])
    bounds = orders * mu**2 / 2 + np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1)
    return float(max(0.0, bounds.min()))
