"""Gaussian differential privacy (Dong, Roth & Su, JRSS-B 2022, arXiv 1905.02383): exact conversion, exact composition.

A Gaussian mechanism of L2 sensitivity D and noise s is mu-GDP with mu = D / s; k of them together are sqrt(k) mu-GDP; and
    delta(eps) = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2)
is exact, so nothing is lost as by Renyi bounds, which are here to check against.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr


def delta_of(epsilon: float, mu: float) -> float:
    """The smallest delta for which mu-GDP implies (epsilon, delta)-DP."""
    if mu == 0:
        return 0.0
    first = log_ndtr(-epsilon / mu + mu / 2)
    second = epsilon + log_ndtr(-epsilon / mu - mu / 2)
    return float(math.exp(first) * -math.expm1(min(0.0, second - first)))


def epsilon_of(mu: float, delta: float) -> float:
    """The smallest epsilon for which mu-GDP implies (epsilon, delta)-DP; inf where mu is."""
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie between 0 and 1, got {delta}")
    if math.isinf(mu):
        return math.inf
    if delta_of(0.0, mu) <= delta:
        return 0.0
    high = 1.0
    while delta_of(high, mu) > delta:
        high *= 2
    return float(brentq(lambda e: delta_of(e, mu) - delta, 0.0, high, xtol=1e-12))


def composed(mu: float, times: float) -> float:
    """mu of `times` releases of the same law about the same records."""
    return math.sqrt(times) * mu


def epsilon_by_renyi(mu: float, delta: float) -> float:
    """The same by Renyi divergences (order a: a mu^2 / 2) and their best conversion: never below the exact figure."""
    orders = np.concatenate([np.linspace(1.01, 64, 6400), np.arange(64, 4096)])
    bounds = orders * mu**2 / 2 + np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1)
    return float(max(0.0, bounds.min()))


@dataclass(frozen=True)
class Latents:
    """What FedDPMS's release of one class's noisy latent means amounts to, by several readings.

    m: samples the mean is of. width: l, coordinates in [0, 1]. sigma: noise. copies: noisy vectors released of the one
    mean. classes: means a client releases.
    """

    m: int
    width: int
    sigma: float
    copies: int
    classes: int

    @property
    def mu(self) -> float:
        """Of one released vector: the L2 sensitivity of a mean in [0, 1]^l is sqrt(l) / m."""
        return math.sqrt(self.width) / (self.m * self.sigma)

    def paper(self, delta: float) -> float:
        """As published: one coordinate, one release, by the classical bound, which holds below 1 only."""
        return math.sqrt(2 * math.log(1.25 / delta)) / (self.m * self.sigma)

    def added(self, delta: float) -> float:
        """One record added or removed: it has one class, so classes compose in parallel."""
        return epsilon_of(composed(self.mu, self.copies), delta)

    def replaced(self, delta: float) -> float:
        """One record replaced by one of another class: two means change."""
        return epsilon_of(composed(self.mu, 2 * self.copies), delta)

    def worst(self, delta: float) -> float:
        """Where it is not certain that classes are disjoint."""
        return epsilon_of(composed(self.mu, self.copies * self.classes), delta)

    @property
    def delta(self) -> float:
        """One that says something of m records."""
        return min(1e-5, 1 / (10 * self.m))
