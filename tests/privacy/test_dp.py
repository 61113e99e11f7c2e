"""Client-level differential privacy: clips, noise, sampling, and when the run ends."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import kstest

import unskew
from tests.privacy import random_settings as settings
from unskew.core.random_keys import NOISE_GRID
from unskew.core.replies import Reply, Ups
from unskew.core.shares import Share
from unskew.data.clients.availability import Availability
from unskew.errors import UsageError
from unskew.methods import registry
from unskew.privacy import accounting, dp
from unskew.privacy.accounting import epsilon_after, most_releases, noise_for
from unskew.round.randomness import SeededSource, SystemSource, system_normal
from unskew.runs import conformance
from unskew.runs.disclosure import disclosure_lines

pytest.importorskip("dp_accounting", reason="the extra [dp] is not installed")

FED = SimpleNamespace(shared=("a", "b"), clients=10, sampled=0.4, rounds=5)
W = {"a": torch.zeros(2), "b": torch.ones(3)}
SUMS = {"p": {"sums": Share((2,), low=0.0)}}


def silent(shape, purpose):
    return torch.zeros(shape, dtype=torch.float64)


def loud(shape, purpose):
    return torch.ones(shape, dtype=torch.float64)


def reply(k, a, b=(1.0, 1.0, 1.0), size=1.0, sums=None):
    shares = {} if sums is None else {"p": {"sums": torch.tensor(sums)}}
    return Reply(k, size, {"a": torch.tensor(a), "b": torch.tensor(b)}, shares)


def released(part, replies, normal=silent, declared=None, s=None):
    ups = replace(Ups.of(replies, 1), declared=declared or {})
    return part.protect(W, s or {}, ups, FED, normal)


def moved(replies):
    """By how much m alike replies move the weights, all in one vector."""
    first = replies[0]
    return torch.cat([(first.weights[n] - W[n]).flatten() for n in W])


PART = dp.DP(epsilon=0, noise_multiplier=2.0, clip=1.0)


def test_the_expected_number_of_replies_and_not_who_was_there():
    """How many took part is told by nothing but the noisy sum."""
    for there in (0, 1, 7):
        replies, _ = released(PART, [reply(k, [0.1, 0.0]) for k in range(there)])
        assert len(replies) == 4 == dp.expected_clients(FED)
        assert {r.client for r in replies} == {dp.NO_CLIENTS}
        assert {r.size for r in replies} == {1.0}
        torch.testing.assert_close(moved(replies), torch.tensor([0.025 * there, 0, 0, 0, 0]))


@pytest.mark.parametrize("far", [[3.0, 4.0], [3e38, -3e38], [0.0, 1e-3]])
def test_one_clients_update_is_at_most_the_clip_as_one_vector(far):
    """Without the clip one client could move the sum at will."""
    replies, _ = released(PART, [reply(0, far, b=(1.0, 1.0, 5.0))])
    assert 4 * float(moved(replies).norm()) <= 1.0 + 4 * NOISE_GRID


def test_sums_that_are_shared_count_in_the_same_norm():
    replies, _ = released(PART, [reply(0, [0.6, 0.0], sums=[8.0, 0.0])], declared=SUMS)
    both = torch.cat([4 * moved(replies), Ups.of(replies).seen_by("p")["sums"].sum(0)])
    assert float(both.norm()) == pytest.approx(1.0)
    assert float(both[0] / both[5]) == pytest.approx(0.6 / 8.0, rel=1e-4)
    scaled = dp.DP(epsilon=0, noise_multiplier=2.0, scale=0.1)
    replies, _ = released(scaled, [reply(0, [0.6, 0.0], sums=[8.0, 0.0])], declared=SUMS)
    # 0.6^2 + 0.8^2 is just 1
    assert float(Ups.of(replies).seen_by("p")["sums"].sum(0)[0]) == pytest.approx(8.0)


def test_every_client_counts_the_same_whatever_it_says_of_its_size():
    """A mean weighted by samples would multiply the sensitivity."""
    small, large = (
        released(PART, [reply(0, [0.5, 0.0]), reply(1, [0.0, 0.5], size=n)])[0] for n in (1.0, 1e9)
    )
    assert torch.equal(moved(small), moved(large))


def test_the_noise_has_the_deviation_that_is_accounted_for_on_weights_and_on_sums():
    replies, _ = released(PART, [], loud, SUMS)
    torch.testing.assert_close(4 * moved(replies), torch.full((5,), 2.0))
    torch.testing.assert_close(Ups.of(replies).seen_by("p")["sums"].sum(0), torch.full((2,), 2.0))
    clipped_less, _ = released(dp.DP(epsilon=0, noise_multiplier=2.0, clip=3.0, scale=0.5), [], loud, SUMS)
    torch.testing.assert_close(4 * moved(clipped_less), torch.full((5,), 6.0))
    torch.testing.assert_close(Ups.of(clipped_less).seen_by("p")["sums"].sum(0), torch.full((2,), 12.0))


def test_the_clip_follows_the_quantile_and_its_search_has_its_share_of_the_budget():
    part = dp.DP(epsilon=0, noise_multiplier=2.0, adaptive=True, quantile=0.5, rate=0.2, clip_budget=0.19)
    start = {"clip": torch.tensor(1.0, dtype=torch.float64)}
    norms = [[0.1, 0.0], [0.2, 0.0], [0.3, 0.0], [5.0, 0.0]]
    replies, after = released(part, [reply(k, a) for k, a in enumerate(norms)], s=start)
    assert 4 * float(moved(replies)[0]) == pytest.approx(0.1 + 0.2 + 0.3 + 1.0)
    assert float(after["clip"]) == pytest.approx(math.exp(-0.2 * (0.75 - 0.5)))  # three of four are below it
    replies, after = released(part, [], loud, s=start)
    weights, clip = 4 * float(moved(replies)[0]), 4 * (-math.log(float(after["clip"])) / 0.2)
    assert weights == pytest.approx(2.0 / 0.9)
    assert clip == pytest.approx(4 * 0.5)  # cut off at 1, half of it above the quantile
    quiet, after = released(replace(part, noise_multiplier=0.5), [], loud, s=start)
    below = 0.5 - math.log(float(after["clip"])) / 0.2
    assert 4 * (below - 0.5) == pytest.approx(0.5 / (2 * math.sqrt(0.19)))
    s_delta, s_b = 4 * float(moved(quiet)[0]), 4 * (below - 0.5)
    assert 1 / s_delta**2 + 1 / (2 * s_b) ** 2 == pytest.approx(1 / 0.5**2)  # both together cost noise 0.5


def train(text, rounds=3, seed=0, **changes):
    """The weights after each round, and the loop."""
    loop = conformance.loop_for(registry.parse(text), seed=seed, rounds=rounds, **changes)
    states = [loop.begin()]
    for t in range(1, loop.last + 1):
        state, told = loop.round(states[-1], t)
        loop.evaluate(state, told)
        states.append(state)
    return [s.weights for s in states], loop


def test_a_run_is_the_loop_over_clipped_updates_and_noise_of_that_size():
    """Noise is added once, the same study has the same noise, and every round has its own."""
    quiet, _ = train("dp(epsilon=0, noise_multiplier=0.1, clip=1e-6)", lr=1e-9)
    noisy, loop = train("dp(epsilon=0, noise_multiplier=4.0, clip=0.5)", lr=1e-9)
    again, _ = train("dp(epsilon=0, noise_multiplier=4.0, clip=0.5)", lr=1e-9)
    steps = [[later[n] - now[n] for n in now] for now, later in pairwise(noisy)]
    for step in steps:
        drawn = torch.cat([t.flatten() for t in step]) * len(conformance.SIZES)
        assert float(drawn.std()) == pytest.approx(4.0 * 0.5, rel=0.05)
        assert abs(float(drawn.mean())) < 0.1
    assert not any(torch.equal(a, b) for a, b in zip(steps[0], steps[1]))
    assert all(torch.equal(noisy[-1][n], t) for n, t in again[-1].items())
    assert max(float((quiet[-1][n] - t).abs().max()) for n, t in quiet[0].items()) < 1e-5
    assert [e for e in loop.record.rows["events"] if e["code"] != "round"] == []


def test_epsilon_is_told_for_every_round_and_is_the_accountants():
    _, loop = train("dp(epsilon=0, noise_multiplier=3.0)", availability="poisson:0.5")
    rounds, spent = loop.record.series("privacy", "epsilon")
    assert rounds == [1, 2, 3]
    assert spent == pytest.approx([epsilon_after(t, 0.5, 3.0, 1e-5) for t in rounds], abs=1e-6)
    assert all(told >= epsilon_after(t, 0.5, 3.0, 1e-5) for t, told in zip(rounds, spent))


def test_the_run_stops_before_the_budget_is_exceeded_and_says_so():
    said: list[str] = []
    settings = {"rounds": 9, "epochs": 1, "batch": 16, "model": "mlp", "workers": 1, "say": said.append}
    result = unskew.run("dp(epsilon=5, noise_multiplier=1.5)", conformance.small_federation(), **settings)
    rounds, spent = result.record.series("privacy", "epsilon")
    assert spent[-1] <= 5 < epsilon_after(rounds[-1] + 1, 1.0, 1.5, 1e-5)
    assert 0 < rounds[-1] < 9
    (event,) = [e for e in result.record.rows["events"] if e["code"] == "E323"]
    assert event["text"] == f"the privacy budget allows {rounds[-1]} of 9 rounds; the run ends after them."
    assert f"E323 {event['text']}" in said  # before round 1, not at the end alone
    assert result.record.series("global", "accuracy")[0][-1] == rounds[-1]


def refusal(text, **changes):
    with pytest.raises(UsageError) as told:
        conformance.loop_for(registry.parse(text), **changes)
    return str(told.value)


@pytest.mark.parametrize("how", ["sample:0.5", "bernoulli:0.5", "poisson:0.5,redraw", "full,quorum:2"])
def test_cohorts_that_are_not_drawn_independently_are_refused(how):
    """Their clients' chances depend on the others, and the accountant's do not."""
    assert "set availability=poisson:0.1" in refusal("dp", availability=how)


@pytest.mark.parametrize(
    ("beside", "why"),
    [
        ("median", "it reads each client's weights"),
        ("fednova", "it reads 'fednova/a' of each client"),
        ("flea", "it exchanges more than training"),
        ("fedrdn", "it exchanges more than training"),
        ("fedavg_ft", "it trains on samples that the server holds"),
    ],
)
def test_what_noise_cannot_protect_is_refused_by_name(beside, why):
    assert refusal(f"{beside}+dp").startswith(f"E107 '{beside}' and 'dp' cannot be combined: {why}")


def test_running_statistics_are_refused_unless_they_stay():
    assert "batch normalisation" in refusal("dp", model="cnn_small(batch_norm=True)")
    train("fedbn+dp(epsilon=0, noise_multiplier=1.0)", rounds=1, model="cnn_small(batch_norm=True)")


@pytest.mark.parametrize("beside", ["rebafl", "scaffold", "feddyn"])
def test_it_goes_with_what_reads_sums(beside):
    weights, loop = train(
        f"{beside}+dp(epsilon=0, noise_multiplier=1.0, scale=0.01)", availability="poisson:0.6"
    )
    assert all(bool(t.isfinite().all()) for t in weights[-1].values())
    assert {e["code"] for e in loop.record.rows["events"]} == {"round"}


@pytest.mark.parametrize(
    ("text", "sums"),
    [
        ("rebafl+dp", "'rebafl/sums', 'rebafl/counts'"),
        ("fedproto+dp(scale=1)", "'fedproto/sums', 'fedproto/counts'"),
        ("rebafl+dp(scale=0.001)", ""),
        ("dp", ""),
        ("rebafl", ""),
    ],
)
def test_sums_that_nobody_has_scaled_are_told_before_the_first_round(text, sums):
    """Sums are far longer than updates, so with `scale` left alone the clip takes the weights away."""
    loop = conformance.loop_for(registry.parse(text), rounds=1)
    loop.begin()
    told = [(e["t"], e["text"]) for e in loop.record.rows["events"] if e["code"] == "E128"]
    assert [t for t, _ in told] == [0] * bool(sums)
    assert all(f"the weights and {sums} as one vector" in words for _, words in told)
    assert [line for line in disclosure_lines(loop) if line.startswith("E128")] == [
        f"E128 {words}" for _, words in told
    ]


TABLE = [
    (256 / 60000, 1.1, 14_062, 1e-5, 2.3817, 2.5966),
    (0.1, 1.0, 100, 1e-5, 7.0466, 7.9039),
    (0.01, 0.8, 1_000, 1e-6, 3.7062, 4.2935),
    (1.0, 4.0, 50, 1e-5, 8.5959, 9.2350),
]
"""q, sigma, releases, delta; epsilon by privacy loss distributions at a tenth of our interval, and by Renyi
divergences."""


@pytest.mark.parametrize(("q", "sigma", "times", "delta", "pld", "renyi"), TABLE)
def test_ours_lies_between_the_tight_figure_and_the_loose_one(q, sigma, times, delta, pld, renyi):
    ours = epsilon_after(times, q, sigma, delta)
    assert pld - 5e-5 <= ours <= 1.02 * renyi
    assert ours <= 1.005 * pld


def test_it_lies_there_for_random_settings():
    """A dozen of those that `make epsilon` tries; small losses were once rounded up fourfold."""
    drawn = settings.drawn(12, seed=4, least_noise=2.0)
    assert [fault for setting in drawn if (fault := settings.wrong(setting, finer=2))] == []
    assert {s.q == 1 for s in settings.drawn(200, 0)} == {True, False}


def test_without_sampling_it_is_the_exact_figure_of_the_gaussian_mechanism():
    from unskew.privacy.accounting import compose_gaussian, gaussian_epsilon

    for sigma, times in ((4.0, 50), (1.0, 1), (20.0, 1000)):
        exact = gaussian_epsilon(compose_gaussian(1 / sigma, times), 1e-5)
        assert exact <= epsilon_after(times, 1.0, sigma, 1e-5) <= 1.001 * exact


@pytest.mark.parametrize(("epsilon", "times", "q"), [(8.0, 50, 1.0), (2.0, 100, 0.1)])
def test_the_noise_that_is_solved_for_keeps_the_budget_and_wastes_little_of_it(epsilon, times, q):
    solved = noise_for(epsilon, times, q, 1e-5)
    assert 0.98 * epsilon <= epsilon_after(times, q, solved, 1e-5) <= epsilon


def test_as_many_releases_as_the_budget_holds_and_not_one_more():
    most = most_releases(5.0, 0.1, 1.0, 1e-5, 100)
    assert epsilon_after(most, 0.1, 1.0, 1e-5) <= 5.0 < epsilon_after(most + 1, 0.1, 1.0, 1e-5)
    assert most_releases(100.0, 0.1, 1.0, 1e-5, 100) == 100
    assert most_releases(0.1, 1.0, 1.0, 1e-5, 100) == 0


def test_without_the_library_a_sentence_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    with pytest.raises(UsageError, match=r"E133 .*pip install 'unskew\[dp\]'"):
        accounting.noise_for(3.21, 7, 0.3, 1e-5)


def test_noise_of_the_operating_system_is_normal_and_new_each_time():
    drawn = system_normal((200, 500)).flatten().numpy()
    assert kstest(drawn, "norm").pvalue > 1e-6
    assert drawn.std() == pytest.approx(1, abs=0.02)
    assert np.abs(drawn).max() > 3.5
    assert not np.isin(drawn, system_normal((100_000,)).numpy()).any()


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
    """Cohorts of one size are draws without replacement, for which the accountant's figure is another."""
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
