"""What Gaussian noise on sums over Poisson samples amounts to, by the privacy loss distributions of dp-accounting.

One release: every record is taken with probability q, whatever becomes of the others; the vectors of those taken, each of
L2 norm at most C, are added up; every coordinate gets noise N(0, (sigma C)^2). T releases about the same records compose.
Neighbours are two sets of records of which one has one record more (Abadi et al., CCS 2016; Koskela et al., AISTATS 2020).
All figures are upper bounds: losses are rounded up to multiples of a step.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# dp-accounting is an optional dependency and has no types.

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from unskew.errors import UsageError

INTERVAL = 1e-3
"""The largest step of the privacy losses, unless one release has far larger ones."""
FINE = 10
"""Steps that a deviation of one release's loss has at least: each release is rounded up by itself, and thousands of small
losses with large steps would add up to several times the epsilon that there is."""
STEPS = 1e4
"""About how many steps the losses of one release take at most."""
MOST_STEPS = 1e6
"""The same where releases of several kinds have one step, the finest of theirs."""
TOLERANCE = 1e-3
"""How far above the least noise the noise that is solved for may lie, as a part of it."""
LEAST_NOISE = 0.1
"""Where the search for noise ends; below it no epsilon is of any use."""


@lru_cache(maxsize=4096)
def epsilon_after(releases: int, q: float, sigma: float, delta: float) -> float:
    """Epsilon at `delta` of so many releases; 0 for none. Raises UsageError (E133) without dp-accounting."""
    if not releases:
        return 0.0
    one = _one_release(q, sigma)
    return float(one.self_compose(releases).get_epsilon_for_delta(delta))


@lru_cache(maxsize=4096)
def epsilon_of(kinds: tuple[tuple[int, float, float], ...], delta: float) -> float:
    """Epsilon at `delta` of releases of several kinds about the same records, all together: of each kind how many, q and
    sigma. Raises UsageError (E133) without dp-accounting."""
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
    """The sigma with which so many releases cost at most `epsilon`, the least but for TOLERANCE. Raises UsageError (E133)."""
    enough, too_little = 1.0, 0.0
    while epsilon_after(releases, q, enough, delta) > epsilon:
        enough, too_little = 2 * enough, enough
    while not too_little:
        half = enough / 2
        if half < LEAST_NOISE:
            return enough
        enough, too_little = (half, 0.0) if epsilon_after(releases, q, half, delta) <= epsilon else (enough, half)
    while enough > (1 + TOLERANCE) * too_little:
        middle = math.sqrt(enough * too_little)
        fits = epsilon_after(releases, q, middle, delta) <= epsilon
        enough, too_little = (middle, too_little) if fits else (enough, middle)
    return enough


def most_releases(epsilon: float, q: float, sigma: float, delta: float, most: int) -> int:
    """How many releases, at most `most`, cost no more than `epsilon`."""
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
    """step: to whose multiples losses are rounded; by default the one that suits such releases alone."""
    try:
        from dp_accounting.pld import privacy_loss_distribution
    except ImportError:
        text = "differential privacy is accounted with dp-accounting, which is not installed: pip install 'unskew[dp]'."
        raise UsageError("E133", text) from None
    step = step or step_of(q, sigma)
    return privacy_loss_distribution.from_gaussian_mechanism(sigma, value_discretization_interval=step, sampling_prob=q)


def step_of(q: float, sigma: float) -> float:
    """The step to whose multiples the losses of one release are rounded."""
    deviation = q * math.sqrt(math.expm1(1 / sigma**2))
    return max(min(INTERVAL, deviation / FINE), largest_loss(q, sigma) / STEPS)


def largest_loss(q: float, sigma: float) -> float:
    """The largest loss of one release that occurs: six deviations from the mean."""
    unsampled = 1 / (2 * sigma**2) + 6 / sigma
    return math.log1p(q * math.expm1(unsampled))


def rounded_up(epsilon: float) -> float:
    """An epsilon with six digits after the point, never below itself."""
    return epsilon if math.isinf(epsilon) else math.ceil(epsilon * 1e6) / 1e6
