"""Our epsilon on random settings, between figures of dp-accounting: never below the truth, never above what
is known to be enough.

    make epsilon                                           200 settings, some minutes
    python -m tests.privacy.random_settings --many 20 --seed 3    others

Of every setting: the tight figure, by privacy loss distributions at a tenth of our step, all losses rounded
down, so that it is no more than the truth; the loose one, by Renyi divergences, which is no less; and without
sampling the exact one.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from unskew.privacy import accounting
from unskew.privacy.accounting import compose_gaussian, gaussian_epsilon

LOOSE = 1.02
"""How far above the figure of Renyi divergences ours may be: they are too high by more than this
themselves."""


ORDERS = (*range(2, 9), 10, 12, 14, 16, 20, 24, 32, 48, 64, 128, 256, 512, 1024, 2048, 4096)
"""Of Renyi divergences; those below 2 take seconds each, and help where epsilon promises nothing."""
LITTLE = 100.0
"""Above this an epsilon promises nothing, and how far above the truth it is does not matter."""


@dataclass(frozen=True)
class Setting:
    """Every record is taken with probability q; noise of sigma times the clip; so many releases; delta."""

    q: float
    sigma: float
    releases: int
    delta: float


def drawn(many: int, seed: int, least_noise: float = 0.4) -> list[Setting]:
    """Settings from one release of everything to thousands of few; one in six asks everybody."""
    rng = np.random.default_rng(seed)
    return [
        Setting(
            q=1.0 if rng.random() < 1 / 6 else float(10 ** rng.uniform(-4, 0)),
            sigma=float(10 ** rng.uniform(math.log10(least_noise), 1.3)),
            releases=int(10 ** rng.uniform(0, 4)),
            delta=float(10 ** rng.uniform(-8, -3)),
        )
        for _ in range(many)
    ]


def ours(s: Setting) -> float:
    return accounting.epsilon_after(s.releases, s.q, s.sigma, s.delta)


@cache
def tight(s: Setting, finer: float = 10) -> float:
    """At most the truth: losses are rounded down to multiples of a step so many times finer than ours."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    one = pld.from_gaussian_mechanism(
        s.sigma,
        pessimistic_estimate=False,
        value_discretization_interval=accounting.step_of(s.q, s.sigma) / finer,
        sampling_prob=s.q,
        use_connect_dots=False,
    )
    return float(one.self_compose(s.releases).get_epsilon_for_delta(s.delta))


def loose(s: Setting) -> float:
    """At least the truth: Renyi divergences."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(ORDERS)
    accountant.compose(PoissonSampledDpEvent(s.q, GaussianDpEvent(s.sigma)), s.releases)
    return float(accountant.get_epsilon(s.delta))


def wrong(s: Setting, told: Callable[[Setting], float] = ours, finer: float = 10) -> str:
    """What is wrong with an accountant's epsilon of a setting; nothing where it lies where it must."""
    epsilon, most = told(s), loose(s)
    least = tight(s, finer if most < LITTLE else 1)
    if s.q == 1:
        least = max(least, gaussian_epsilon(compose_gaussian(1 / s.sigma, s.releases), s.delta))
    if epsilon < least * (1 - 1e-9):
        return f"{s}: epsilon {epsilon:.6g} is below the truth, {least:.6g} at least"
    if epsilon > LOOSE * most and most < LITTLE:
        return f"{s}: epsilon {epsilon:.6g} is above {LOOSE} x {most:.6g}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--many", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began, faults, above = time.perf_counter(), list[str](), list[float]()
    for setting in drawn(options.many, options.seed):
        if fault := wrong(setting):
            faults.append(fault)
            print(fault, flush=True)
        elif ours(setting) > 0.01 and loose(setting) < LITTLE:
            above.append(ours(setting) / tight(setting) - 1)
    print(f"{options.many} settings, {len(faults)} wrong, {time.perf_counter() - began:.0f} s")
    median, most = (f"{100 * figure:.2g} %" for figure in (np.median(above), max(above)))
    print(
        f"where epsilon is 0.01 to {LITTLE:g}, it is above the tight figure by {median} (median), {most}"
        " (most)"
    )
    return int(bool(faults))


if __name__ == "__main__":
    raise SystemExit(main())
