"""Client-level differential privacy: what is clipped, how much noise there is, who is sampled, and when the
run ends."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

import unskew
from unskew.core.keys import NOISE_GRID
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.protection import protection_problem
from unskew.core.replies import Reply, Ups
from unskew.core.shares import Share
from unskew.core.trip import Trip
from unskew.errors import UsageError
from unskew.methods import registry
from unskew.privacy import dp
from unskew.privacy.accounting import epsilon_after
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


def test_a_small_update_stays_as_it_is():
    replies, _ = released(PART, [reply(0, [0.3, 0.4])])
    torch.testing.assert_close(4 * moved(replies)[:2], torch.tensor([0.3, 0.4]))


def test_sums_that_are_shared_count_in_the_same_norm():
    replies, _ = released(PART, [reply(0, [0.6, 0.0], sums=[8.0, 0.0])], declared=SUMS)
    both = torch.cat([4 * moved(replies), Ups.of(replies).seen_by("p")["sums"].sum(0)])
    assert float(both.norm()) == pytest.approx(1.0)
    assert float(both[0] / both[5]) == pytest.approx(0.6 / 8.0, rel=1e-4)
    scaled = dp.DP(epsilon=0, noise_multiplier=2.0, scale=0.1)
    replies, _ = released(scaled, [reply(0, [0.6, 0.0], sums=[8.0, 0.0])], declared=SUMS)
    assert float(Ups.of(replies).seen_by("p")["sums"].sum(0)[0]) == pytest.approx(
        8.0
    )  # 0.6^2 + 0.8^2 is just 1


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


def test_noise_makes_no_sum_negative_that_cannot_be():
    replies, _ = released(PART, [], lambda shape, _: -loud(shape, _), SUMS)
    assert float(Ups.of(replies).seen_by("p")["sums"].sum()) == 0.0


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
    try:
        states = [loop.begin()]
        for t in range(1, loop.last + 1):
            state, told = loop.round(states[-1], t)
            loop.evaluate(state, told)
            states.append(state)
        return [s.weights for s in states], loop
    finally:
        loop.trainer.close()


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


def test_noise_is_released_also_where_nobody_was_asked():
    """A model that stays as it is would tell that no client was there."""
    weights, loop = train("dp(epsilon=0, noise_multiplier=1.0)", availability="poisson:0.000001")
    assert all(r["answered"] == [] for r in loop.record.rows["events"] if r["code"] == "round")
    assert not any(torch.equal(weights[0][n], t) for n, t in weights[1].items())


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


def test_a_delta_of_one_client_in_all_is_refused():
    assert "no less than one in 8 clients" in refusal("dp(delta=0.125)")


def test_a_budget_without_room_for_one_round_is_refused():
    assert "its first round would cost epsilon 4.377, above 3" in refusal(
        "dp(epsilon=3, noise_multiplier=1.0)"
    )


def test_neither_epsilon_nor_noise_is_refused():
    with pytest.raises(UsageError, match="E102 DP: give epsilon, noise_multiplier or both"):
        registry.parse("dp(epsilon=0)")
    with pytest.raises(UsageError, match=r"E102 DP: noise_multiplier must be 0 or at least 0\.1"):
        registry.parse("dp(noise_multiplier=0.01)")


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


def test_every_method_with_an_exchange_of_its_own_is_refused_and_told_what_to_switch_off():
    """Nothing that leaves a client outside training may go out beside a guarantee that does not count it."""
    parts = {name: registry.parse(name).parts for name in registry.names()}
    told = {
        name: protection_problem(own[0], FED) or "" for name, own in parts.items() if own and own[0].trips
    }
    assert {"unskew", "flea", "fedmix", "ccvr", "fedrdn"} <= told.keys()
    assert [
        name for name, text in told.items() if not text.startswith(("it exchanges more", "it reads each"))
    ] == []
    assert told["unskew"].endswith("gets no noise; unskew(statistics=False) does without")
    assert told["flea"].endswith("gets no noise")  # fused or not, it exchanges activations
    conformance.loop_for(
        registry.parse("unskew(statistics=False)+dp(epsilon=0, noise_multiplier=1.0)")
    ).trainer.close()


@dataclass(frozen=True)
class Counting(Part):
    """Shares whole numbers."""

    name: ClassVar[str] = "counting"

    def shares(self, fed):
        return {"n": Share((), dtype=torch.int64)}

    def finish(self, w, c):
        return {"n": c.n.long()}, {}


def test_whole_numbers_get_no_noise_and_are_refused():
    with pytest.raises(UsageError, match=r"E107 .*'counting/n' is no vector of fixed length"):
        conformance.loop_for(Method(Counting(), PART))


def test_running_statistics_are_refused_unless_they_stay():
    assert "batch normalisation" in refusal("dp", model="cnn_small(batch_norm=True)")
    train("fedbn+dp(epsilon=0, noise_multiplier=1.0)", rounds=1, model="cnn_small(batch_norm=True)")


@pytest.mark.parametrize("beside", ["rebafl", "scaffold", "fedprox", "fedavgm", "feddyn", "fedproto"])
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
        ("scaffold+dp", ""),
        ("dp", ""),
        ("rebafl", ""),
    ],
)
def test_sums_that_nobody_has_scaled_are_told_before_the_first_round(text, sums):
    """Sums are far longer than updates, so with `scale` left alone the clip takes the weights away, and
    nobody knows why."""
    loop = conformance.loop_for(registry.parse(text), rounds=1)
    loop.begin()
    loop.trainer.close()
    told = [(e["t"], e["text"]) for e in loop.record.rows["events"] if e["code"] == "E128"]
    assert [t for t, _ in told] == [0] * bool(sums)
    assert all(f"the weights and {sums} as one vector" in words for _, words in told)
    assert [line for line in disclosure_lines(loop) if line.startswith("E128")] == [
        f"E128 {words}" for _, words in told
    ]


def test_the_ledger_says_that_broadcasts_are_protected_and_uploads_are_not():
    _, loop = train("rebafl+dp(epsilon=0, noise_multiplier=1.0)", rounds=1)
    told = {(r["way"], r["share"]): (r["reads"], r["guarantee"]) for r in loop.record.rows["ledger"]}
    assert told["up", "w"] == ("each", "none")
    assert told["down", "w"][1] == told["down", "rebafl"][1] == "dp"


def test_what_the_noise_amounts_to_is_written_with_where_it_is_drawn(tmp_path):
    unskew.run(
        "dp(epsilon=0, noise_multiplier=1.0)",
        conformance.small_federation(),
        rounds=2,
        epochs=1,
        model="mlp",
        name="r",
        folder=tmp_path,
    )
    told = json.loads((tmp_path / "r" / "privacy.json").read_text())["dp"]
    assert (
        "drawn from the study's seed, so this holds for a simulation only" in told["epsilons"][0]["reading"]
    )
    first, second = told["epsilons"]
    assert first["epsilon"] == pytest.approx(epsilon_after(2, 1.0, 1.0, 1e-5), abs=1e-6)
    assert second["epsilon"] is None
    assert "against the server" in second["reading"]


def test_two_parts_that_protect_are_one_too_many():
    with pytest.raises(UsageError, match="E107"):
        Method(PART, PART)


def test_trips_are_not_released():
    """A Part's own exchange would carry what no noise covers."""

    @dataclass(frozen=True)
    class Asking(Part):
        name: ClassVar[str] = "asking"

        @property
        def trips(self):
            return (Trip(lambda t, T: True, lambda w, c: {}, lambda w, s, u, f: (w, s), lambda fed: {}),)

    with pytest.raises(UsageError, match="E107 'asking' and 'dp'"):
        conformance.loop_for(Method(Asking(), PART))
