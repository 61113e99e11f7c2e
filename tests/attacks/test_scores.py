"""What stands behind every attack's numbers: intervals, doubts and likeness, each by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from unskew.attacks import success
from unskew.attacks.attack import Outcome, Score, mean_of, pool, share_of

AUC = Score("w", "merged", "AUC", 0.7, 0.65, 0.75, floor=0.5, ceiling=1.0, n=40, main=True)
MSE = Score("w", "merged", "MSE", 0.5, 0.4, 0.6, floor=1.0, ceiling=0.0, n=40)


@pytest.mark.parametrize(
    ("score", "value", "half", "says"),
    [
        (AUC, 0.7, 0.05, ""),
        (AUC, 0.42, 0.05, ""),  # twice the interval below the floor is chance
        (AUC, 0.39, 0.05, "merged: AUC is worse than its floor"),
        (AUC, 1.08, 0.05, ""),
        (AUC, 1.12, 0.05, "merged: AUC beats its ceiling"),
        (AUC, 0.2, math.nan, ""),  # of one sample nothing is known
        (MSE, 0.5, 0.1, ""),
        (MSE, 1.15, 0.1, ""),
        (MSE, 1.25, 0.1, "merged: MSE is worse than its floor"),
        (MSE, -0.25, 0.1, "merged: MSE beats its ceiling"),
    ],
)
def test_an_attack_that_leaves_its_bounds_beyond_chance_is_doubted(score, value, half, says):
    doubt = replace(score, value=value, low=value - half, high=value + half).doubt
    assert doubt.startswith(says) if says else not doubt


def test_attempts_with_several_seeds_have_an_interval_over_the_seeds():
    """0.5, 0.7 and 0.9: mean 0.7, deviation 0.2; Student's t is 4.3027 with two degrees of freedom."""
    values = (0.5, 0.7, 0.9)
    attempts = [
        Outcome(
            (replace(AUC, value=v, floor=0.4 + 0.1 * i, ceiling=0.9 + 0.1 * i), replace(AUC, of="client 3")),
            "none",
        )
        for i, v in enumerate(values)
    ]
    merged, client = pool(attempts)
    half = 4.302653 * 0.2 / math.sqrt(3)
    assert (merged.value, merged.low, merged.high) == pytest.approx((0.7, 0.7 - half, 0.7 + half), abs=1e-6)
    assert (merged.floor, merged.ceiling, merged.main) == (pytest.approx(0.5), pytest.approx(1.0), True)
    assert (client.of, client.value, client.low, client.high) == (
        "client 3",
        pytest.approx(0.7),
        pytest.approx(0.7),
        pytest.approx(0.7),
    )
    assert pool(attempts[:1])[0] == attempts[0].scores[0]  # of one seed the interval is over samples


def test_intervals_by_hand():
    assert share_of(8, 10) == pytest.approx((0.8, 0.4901625, 0.9433178), abs=1e-4)  # Wilson's
    assert share_of(0, 5)[:2] == (0, 0)
    mean, low, high = mean_of(np.array([1.0, 2.0, 3.0, 4.0]))
    half = 3.182446 * math.sqrt(5 / 3 / 4)  # Student's t with three degrees of freedom
    assert (mean, high - mean, mean - low) == pytest.approx((2.5, half, half), abs=1e-5)
    assert math.isnan(mean_of(np.array([1.0]))[1])
    assert replace(AUC, value=math.nan).as_json() | {"n": 40} == {
        "payload": "w",
        "of": "merged",
        "metric": "AUC",
        "value": None,
        "low": 0.65,
        "high": 0.75,
        "floor": 0.5,
        "ceiling": 1.0,
        "n": 40,
        "main": True,
    }


def test_the_floor_is_what_a_guess_without_the_payload_comes_to():
    """Samples 0 and 2 of two clients, answers 0.5 and 0 off, and a guess of 1 for both: a mean error of 0.125
    that hides a sample recovered exactly."""
    there = torch.tensor([[0.0], [2.0]])
    answers, guess = there + torch.tensor([[0.5], [0.0]]), success.Guess(torch.ones(1, 1), 2.0)
    mse, psnr, exact, worst = success.likeness_scores(
        "w", "merged", answers, there, guess, torch.tensor([3, 7])
    )
    assert (mse.value, mse.floor, mse.ceiling, mse.main, mse.n) == (0.125, 1.0, 0.0, True, 2)
    assert (psnr.floor, psnr.ceiling, psnr.main) == (pytest.approx(10 * math.log10(4)), math.inf, False)
    assert (exact.metric, exact.value, exact.floor) == ("share above 40 dB", 0.5, 0.0)
    assert (worst.value, worst.floor, worst.n, worst.main) == (0.0, 1.0, 1, False)
