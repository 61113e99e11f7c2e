"""Accounting of differential privacy: Gaussian mechanisms, sums over Poisson samples, noisy latent means.

Gaussian differential privacy (Dong, Roth & Su, JRSS-B 2022, arXiv 1905.02383). A Gaussian mechanism of L2
sensitivity D and noise s is mu-GDP with mu = D / s; k of them together are sqrt(k) mu-GDP;
    delta(eps) = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2)
Both are exact.

Sums over Poisson samples, by the privacy loss distributions of dp-accounting. One release draws every record
independently with probability q, sums the vectors of the drawn records, each of L2 norm at most C, and adds
noise N(0, (sigma C)^2) to every coordinate. T releases about one set of records compose. Two sets of records
are neighbours if one has one record more (Abadi et al., CCS 2016; Koskela et al., AISTATS 2020). All figures
are upper bounds: losses are rounded up to multiples of a step.

FedDPMS's release of noisy latent means, as published and by stricter readings. A mean of m vectors in
[0, 1]^l has L2 sensitivity sqrt(l) / m; with noise sigma that is mu-GDP, mu = sqrt(l) / (m sigma). This takes
the encoder, the class sizes and the list of shared classes as fixed: one record can change which classes are
shared, and so the shape of the release, which no noise covers.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# dp-accounting is an optional dependency and has no types.

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np

from unskew.core.privacy_account import Account
from unskew.errors import MissingPackage


def gaussian_delta(epsilon: float, mu: float) -> float:
    """The smallest delta for which mu-GDP implies (epsilon, delta)-DP; 0 for mu = 0."""
    from scipy.special import log_ndtr  # slow to import, and most runs have no account

    if mu == 0:
        return 0.0
    first = log_ndtr(-epsilon / mu + mu / 2)
    second = epsilon + log_ndtr(-epsilon / mu - mu / 2)
    return float(math.exp(first) * -math.expm1(min(0.0, second - first)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon for which mu-GDP implies (epsilon, delta)-DP; inf where mu is. Raises ValueError
    for a delta outside (0, 1)."""
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie between 0 and 1, got {delta}")
    if math.isinf(mu):
        return math.inf
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    from scipy.optimize import brentq  # slow to import

    high = 1.0
    while gaussian_delta(high, mu) > delta:
        high *= 2
    return cast(float, brentq(lambda e: gaussian_delta(e, mu) - delta, 0.0, high, xtol=1e-12))


def compose_gaussian(mu: float, times: float) -> float:
    """mu of `times` releases, each mu-GDP, about the same records."""
    return math.sqrt(times) * mu


INTERVAL = 1e-3
"""The largest step of the privacy losses, unless one release has far larger ones."""
FINE_STEP = 10
"""The least number of steps in a standard deviation of one release's loss. Each release is rounded up by
itself, so with larger steps thousands of small losses would add up to several times the true epsilon."""
STEPS = 1e4
"""The most steps, approximately, for the losses of one release."""
MOST_STEPS = 1e6
"""The most steps where releases of several kinds share the finest step."""
TOLERANCE = 1e-3
"""The relative tolerance of the noise that is solved for, above the least possible noise."""
LEAST_NOISE = 0.1
"""The lower end of the search for noise; with less noise every epsilon is uselessly large."""


@lru_cache(maxsize=4096)
def epsilon_after(releases: int, q: float, sigma: float, delta: float) -> float:
    """Epsilon at `delta` of `releases` releases; 0 for none. Raises UsageError (E133) without
    dp-accounting."""
    if not releases:
        return 0.0
    one = _one_release(q, sigma)
    return float(one.self_compose(releases).get_epsilon_for_delta(delta))


@lru_cache(maxsize=4096)
def sampled_epsilon(kinds: tuple[tuple[int, float, float], ...], delta: float) -> float:
    """Epsilon at `delta` of all releases about one set of records. kinds: (number, q, sigma) of each kind of
    release. Raises UsageError (E133) without dp-accounting."""
    occurring = [kind for kind in kinds if kind[0]]
    if len(occurring) < 2:
        return epsilon_after(*occurring[0], delta) if occurring else 0.0
    step = max(
        min(step_of(q, sigma) for _, q, sigma in occurring),
        max(largest_loss(q, s) for _, q, s in occurring) / MOST_STEPS,
    )
    whole, *others = (_one_release(q, sigma, step).self_compose(releases) for releases, q, sigma in occurring)
    for other in others:
        whole = whole.compose(other)
    return float(whole.get_epsilon_for_delta(delta))


@lru_cache(maxsize=256)
def noise_for(epsilon: float, releases: int, q: float, delta: float) -> float:
    """The least sigma, up to TOLERANCE, with which the releases cost at most `epsilon`. Raises UsageError
    (E133) without dp-accounting."""
    enough, too_little = 1.0, 0.0
    while epsilon_after(releases, q, enough, delta) > epsilon:
        enough, too_little = 2 * enough, enough
    while not too_little:
        half = enough / 2
        if half < LEAST_NOISE:
            return enough
        enough, too_little = (
            (half, 0.0) if epsilon_after(releases, q, half, delta) <= epsilon else (enough, half)
        )
    while enough > (1 + TOLERANCE) * too_little:
        middle = math.sqrt(enough * too_little)
        fits = epsilon_after(releases, q, middle, delta) <= epsilon
        enough, too_little = (middle, too_little) if fits else (enough, middle)
    return enough


def most_releases(epsilon: float, q: float, sigma: float, delta: float, most: int) -> int:
    """The largest number of releases, at most `most`, that costs no more than `epsilon`."""
    enough, too_many = 0, most + 1
    if epsilon_after(most, q, sigma, delta) <= epsilon:
        return most
    while too_many - enough > 1:
        middle = (enough + too_many) // 2
        if epsilon_after(middle, q, sigma, delta) <= epsilon:
            enough = middle
        else:
            too_many = middle
    return enough


@lru_cache(maxsize=8)
def _one_release(q: float, sigma: float, step: float | None = None) -> Any:
    """The privacy loss distribution of one release. step: losses are rounded up to its multiples."""
    try:
        from dp_accounting.pld import privacy_loss_distribution
    except ImportError:
        raise MissingPackage("the account of differential privacy", "dp-accounting", "dp") from None
    step = step or step_of(q, sigma)
    return privacy_loss_distribution.from_gaussian_mechanism(
        sigma, value_discretization_interval=step, sampling_prob=q
    )


def step_of(q: float, sigma: float) -> float:
    """The step for the losses of one release, which are rounded up to its multiples."""
    deviation = q * math.sqrt(math.expm1(1 / sigma**2))
    return max(min(INTERVAL, deviation / FINE_STEP), largest_loss(q, sigma) / STEPS)


def largest_loss(q: float, sigma: float) -> float:
    """The largest loss of one release that matters: six deviations above the mean."""
    unsampled = 1 / (2 * sigma**2) + 6 / sigma
    return math.log1p(q * math.expm1(unsampled))


def round_up(epsilon: float) -> float:
    """An epsilon, rounded up to six digits after the point."""
    return epsilon if math.isinf(epsilon) else math.ceil(epsilon * 1e6) / 1e6


@dataclass(frozen=True)
class LatentRelease:
    """The rule by which every client releases noisy means of latents; its epsilon for a mean of m samples.

    width: l, the coordinates of a latent. sigma: standard deviation of the noise. copies: noisy vectors that
    are released of each mean. top: the most classes that a client shares, its largest ones. least: the least
    samples of a shared class. filtered: whether vectors pass a filter that depends on the data before they
    leave.
    """

    width: int
    sigma: float
    copies: int
    top: int
    least: int = 1
    filtered: bool = False

    def paper(self, m: int, delta: float) -> float:
        """Epsilon as published: one coordinate, one release, by the classical bound, which holds below 1
        only."""
        return math.sqrt(2 * math.log(1.25 / delta)) / (m * self.sigma)

    def mu(self, m: int) -> float:
        """mu of one released vector."""
        return math.sqrt(self.width) / (m * self.sigma)

    def composed(self, m: int, delta: float, means: int) -> float:
        """Epsilon if this many means may change. A record has one class, so adding or removing it changes one
        mean, and replacing it two; if classes overlap, all means of a client may change."""
        return gaussian_epsilon(compose_gaussian(self.mu(m), self.copies * means), delta)

    def account(self, counts_KC: np.ndarray[Any, Any]) -> Account:
        """The account for each shared class of each client, and for the smallest one. counts_KC: samples per
        client and class."""
        order_KC = np.argsort(-counts_KC, axis=1, kind="stable")[:, : self.top]
        shared = [
            (i, int(c), int(counts_KC[i, c]))
            for i, order_C in enumerate(order_KC)
            for c in order_C
            if counts_KC[i, c] >= self.least
        ]
        if not shared:
            return Account("no client has a class large enough to share")
        least = min(m for _, _, m in shared)
        delta = min(1e-5, 1 / (10 * least))  # well below one in the number of records
        figures = {m: (self.paper(m, delta), self.composed(m, delta, 1)) for m in {m for _, _, m in shared}}
        return Account(
            f"m = {least}, l = {self.width}, sigma = {self.sigma:g}, alpha = {self.copies}, n = {self.top}",
            self._readings(least, delta),
            tuple((i, c, m, *figures[m]) for i, c, m in shared),
            delta,
        )

    def _readings(self, m: int, delta: float) -> tuple[tuple[float, str], ...]:
        given = "given the encoder, the class sizes and the class lists"
        sound = f"not guaranteed, also {given}: the filter sees the data" if self.filtered else given
        kinds = (
            (1, "a record added or removed"),
            (2, "a record replaced by one of another class"),
            (max(2, self.top), "at worst"),
        )
        return (
            (self.paper(m, delta), "as published: one coordinate, one release"),
            *((self.composed(m, delta, means), f"of the latents, {kind}; {sound}") for means, kind in kinds),
            (math.inf, "end to end: weights, encoder, decoder, class sizes and class lists carry no noise"),
        )
