"""Epsilon of Gaussian noise on sums over Poisson samples, against figures that dp-accounting 0.6 gave
beforehand."""

from __future__ import annotations

import math
import sys

import pytest

from tests.privacy import random_settings as settings
from unskew.errors import UsageError
from unskew.privacy import accounting
from unskew.privacy.accounting import epsilon_after, most_releases, noise_for, round_up

pytest.importorskip("dp_accounting", reason="the extra [dp] is not installed")

TABLE = [
    (256 / 60000, 1.1, 14_062, 1e-5, 2.3817, 2.5966),
    (0.1, 1.0, 100, 1e-5, 7.0466, 7.9039),
    (0.1, 0.5, 100, 1e-5, 31.3710, 36.9667),
    (0.01, 0.8, 1_000, 1e-6, 3.7062, 4.2935),
    (1.0, 4.0, 50, 1e-5, 8.5959, 9.2350),
    (0.2, 2.0, 200, 1e-5, 7.3723, 8.0285),
]
"""q, sigma, releases, delta; epsilon by privacy loss distributions at a tenth of our interval, and by Renyi
divergences."""


@pytest.mark.parametrize(("q", "sigma", "times", "delta", "pld", "renyi"), TABLE)
def test_ours_lies_between_the_tight_figure_and_the_loose_one(q, sigma, times, delta, pld, renyi):
    ours = epsilon_after(times, q, sigma, delta)
    assert pld - 5e-5 <= ours <= 1.02 * renyi
    assert ours <= 1.005 * pld


def test_it_lies_there_for_random_settings():
    """A dozen of those that `make epsilon` tries; small losses in thousands were once rounded up to four
    times their sum."""
    drawn = settings.drawn(12, seed=4, least_noise=2.0)
    assert [fault for setting in drawn if (fault := settings.wrong(setting, finer=2))] == []
    assert {s.q == 1 for s in settings.drawn(200, 0)} == {True, False}


def test_an_accountant_that_is_too_low_or_too_high_is_told():
    many, once = settings.Setting(0.0033, 4.4, 7758, 1e-6), settings.Setting(1.0, 4.0, 50, 1e-5)
    tenth = settings.Setting(0.00033, 4.4, 7758, 1e-6)
    assert "is below the truth" in settings.wrong(many, lambda _: settings.ours(tenth), finer=2)
    assert "is above 1.02 x" in settings.wrong(many, lambda s: 2 * settings.ours(s), finer=2)
    assert "is below the truth" in settings.wrong(once, lambda s: 0.99 * settings.ours(s), finer=2)


def test_without_sampling_it_is_the_exact_figure_of_the_gaussian_mechanism():
    from unskew.privacy.accounting import compose_gaussian, gaussian_epsilon

    for sigma, times in ((4.0, 50), (1.0, 1), (20.0, 1000)):
        exact = gaussian_epsilon(compose_gaussian(1 / sigma, times), 1e-5)
        assert exact <= epsilon_after(times, 1.0, sigma, 1e-5) <= 1.001 * exact


def test_nothing_released_costs_nothing_and_more_costs_more():
    assert epsilon_after(0, 0.1, 1.0, 1e-5) == 0.0
    figures = [epsilon_after(t, 0.1, 1.0, 1e-5) for t in (1, 2, 10)]
    assert figures == sorted(set(figures))


@pytest.mark.parametrize(("epsilon", "times", "q"), [(8.0, 50, 1.0), (2.0, 100, 0.1)])
def test_the_noise_that_is_solved_for_keeps_the_budget_and_wastes_little_of_it(epsilon, times, q):
    solved = noise_for(epsilon, times, q, 1e-5)
    assert 0.98 * epsilon <= epsilon_after(times, q, solved, 1e-5) <= epsilon


def test_as_many_releases_as_the_budget_holds_and_not_one_more():
    most = most_releases(5.0, 0.1, 1.0, 1e-5, 100)
    assert epsilon_after(most, 0.1, 1.0, 1e-5) <= 5.0 < epsilon_after(most + 1, 0.1, 1.0, 1e-5)
    assert most_releases(100.0, 0.1, 1.0, 1e-5, 100) == 100
    assert most_releases(0.1, 1.0, 1.0, 1e-5, 100) == 0


def test_epsilon_is_rounded_up():
    assert round_up(1.00000001) == 1.000001
    assert round_up(math.inf) == math.inf


def test_without_the_library_a_sentence_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    with pytest.raises(UsageError, match=r"E133 .*pip install 'unskew\[dp\]'"):
        accounting.noise_for(3.21, 7, 0.3, 1e-5)
