"""The randomness that guarantees rest on: its law, and that nobody can draw it again."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from unskew.data.clients.availability import Availability
from unskew.round.randomness import SeededSource, SystemSource, system_normal


def test_noise_of_the_operating_system_is_normal_and_new_each_time():
    drawn = system_normal((200, 500)).flatten().numpy()
    assert kstest(drawn, "norm").pvalue > 1e-6
    assert drawn.std() == pytest.approx(1, abs=0.02)
    assert np.abs(drawn).max() > 3.5
    assert not np.isin(drawn, system_normal((100_000,)).numpy()).any()


def test_shapes_of_noise():
    assert system_normal(()).shape == ()
    assert system_normal((2, 3)).dtype == torch.float64
    assert SystemSource().normal(1, "dp")((4,), "w/a").shape == (4,)


def test_noise_of_a_seed_differs_by_round_part_and_tensor_and_is_the_same_again():
    draws = [
        SeededSource(seed).normal(t, part)((3,), purpose)
        for seed, t, part, purpose in (
            (0, 1, "dp", "a"),
            (1, 1, "dp", "a"),
            (0, 2, "dp", "a"),
            (0, 1, "x", "a"),
            (0, 1, "dp", "b"),
        )
    ]
    assert len({tuple(d.tolist()) for d in draws}) == len(draws)
    assert torch.equal(draws[0], SeededSource(0).normal(1, "dp")((3,), "a"))


def test_cohorts_of_the_operating_system_are_new_each_time():
    first, second = (SystemSource().cohort(1).random(50) for _ in range(2))
    assert not np.array_equal(first, second)
    assert np.array_equal(SeededSource(3).cohort(1).random(5), SeededSource(3).cohort(1).random(5))


def test_poisson_cohorts_have_the_sizes_of_independent_draws():
    """Cohorts of one size would be draws without replacement, for which the accountant's figure is
    another."""
    who = Availability.parse("poisson:0.3")
    cohorts = [who.who(t, 100, SeededSource(0).cohort).answered for t in range(300)]
    sizes = np.array([len(c) for c in cohorts])
    assert sizes.mean() == pytest.approx(30, abs=1)
    assert sizes.var() == pytest.approx(100 * 0.3 * 0.7, rel=0.25)
    together = np.mean([3 in c and 7 in c for c in cohorts])
    assert together == pytest.approx(0.09, abs=0.05)
    assert who.independent == 0.3


def test_every_round_and_every_client_draws_samples_of_its_own():
    """And the same ones again from the same seed."""

    def drawn(seed: int, t: int, client: int) -> tuple[float, ...]:
        return tuple(SeededSource(seed).samples(t, client).random(3).tolist())

    draws = [drawn(seed, t, client) for seed in (0, 1) for t in (1, 2) for client in (0, 1)]
    assert len(set(draws)) == 8
    assert drawn(0, 1, 0) == draws[0]
    assert SeededSource(0).cohort(1).random() != SeededSource(0).cohort(2).random()
