"""Sums over a client's samples with noise of its own: bounds, counts, and what may ask for them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.shares import Share
from unskew.core.trip import Trip
from unskew.errors import UsageError
from unskew.methods import catalogue, registry
from unskew.methods.fedrdn import FedRDN
from unskew.privacy.accounting import epsilon_after, sampled_epsilon
from unskew.privacy.dpsgd import DPSGD
from unskew.round.randomness import SeededSource, SystemSource
from unskew.round.sample_privacy import NoisySums, Release, with_sums
from unskew.runs import conformance
from unskew.runs.disclosure import accounts

pytest.importorskip("dp_accounting", reason="the extra [dp] is not installed")


def norm(v) -> float:
    return float(torch.cat([t.flatten() for t in v.values()]).double().norm())


def loop_of(text, **changes):
    """A run of the test federation."""
    return conformance.loop_for(registry.parse(text), **changes)


def measured(loop, k, measure, rows=None, raw=True):
    """The sum without noise that client k would release of these rows, by default its own."""
    trainer = loop.trainer
    own = list(trainer.samples.rows)
    own[k] = own[k] if rows is None else rows
    trainer.samples = replace(trainer.samples, rows=own)
    start = loop.down(loop.begin(), 1)
    c = trainer.client(k, start, "", start.weights, {})
    with trainer.evaluating():
        return NoisySums(trainer, c, k, start, Release("x", "finish", 1))._sums(measure, raw)


def pixels(b):
    return {"x": (b.x.flatten(1) * b.weight[:, None]).sum(0), "n": b.weight.sum()}


def test_what_one_sample_adds_is_at_most_the_clip_as_one_vector():
    kept = DPSGD(sums_clip=0.5).sample_sum({"mu": torch.tensor([3.0, 4.0]), "n": torch.tensor(12.0)}, None)
    assert kept["mu"].tolist() == pytest.approx([0.5 * 3 / 13, 0.5 * 4 / 13])
    assert float(kept["n"]) == pytest.approx(0.5 * 12 / 13)
    short = DPSGD(sums_clip=20.0).sample_sum({"mu": torch.tensor([3.0, 4.0]), "n": torch.tensor(12.0)}, None)
    assert [*short["mu"].tolist(), float(short["n"])] == [3.0, 4.0, 12.0]
    for bad in (float("nan"), float("inf")):
        assert norm(DPSGD().sample_sum({"mu": torch.tensor([bad, 1.0]), "n": torch.tensor(1.0)}, None)) == 0


def test_statistics_are_those_of_a_plain_loop_with_clip_and_noise_by_hand():
    loop = loop_of("fedrdn+dpsgd(sums_clip=0.8, sums_noise=2.0)")
    fed, k = loop.fed, 0
    (trip,) = FedRDN().trips
    (reply,) = loop.trainer.visit(trip, loop.method.parts[0], loop.down(loop.begin(), 0), [k], {})
    total = {
        "mu": torch.zeros(3, dtype=torch.float64),
        "sigma": torch.zeros(3, dtype=torch.float64),
        "n": torch.zeros(()),
    }
    for i in loop.trainer.samples.rows[k].tolist():
        pixels_CP = loop.trainer.samples.x[i].double().flatten(1)
        v = {"mu": pixels_CP.mean(1), "sigma": pixels_CP.std(1, correction=0), "n": torch.ones(())}
        for name, t in v.items():
            total[name] = total[name] + t * min(1.0, 0.8 / norm(v))
    normal = SeededSource(fed.seed).normal(0, "fedrdn")
    noisy = {n: t + 1.6 * normal(tuple(t.shape), f"sums {k} trip 0 0 {n}") for n, t in total.items()}
    n = noisy["n"]
    assert n > 3 * 1.6
    least = 3 * 1.6 / n
    torch.testing.assert_close(reply.shares["fedrdn"]["mu"].double(), noisy["mu"] / n, rtol=0, atol=1e-5)
    torch.testing.assert_close(
        reply.shares["fedrdn"]["sigma"].double(), (noisy["sigma"] / n).clamp(min=least), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("far", [1.0, 1e4])
@pytest.mark.parametrize("model", ["cnn_small", "mlp(hidden=(8,))"])
def test_one_sample_more_moves_a_sum_by_the_clip_at_most(far, model):
    """Also of what the model makes of it, and whatever the other samples are."""
    loop = loop_of("dpsgd(sums_clip=0.3)", model=model)
    w, rows = loop.fed.net.weights(), loop.trainer.samples.rows[4]
    extra = int(rows[7])
    loop.trainer.samples.x[extra] *= far

    def of_features(b):
        y_BC = b.y * b.weight[:, None]
        return {"h": torch.einsum("bc,bd->cd", y_BC, loop.trainer.net.features_of(w, b.x)), "n": y_BC.sum(0)}

    for measure, raw in ((pixels, True), (of_features, False)):
        sums = [measured(loop, 4, measure, r, raw) for r in (rows, rows[rows != extra])]
        apart = norm({n: sums[0][n] - sums[1][n] for n in sums[0]})
        assert apart <= 0.3 * (1 + 1e-6)
        assert apart == pytest.approx(0.3, rel=1e-4), "every sample here is longer than that"


def test_no_two_sums_have_the_same_noise():
    """Of two in one hook, two rounds, two clients, a hook and a trip."""
    loop = loop_of("fedproto+ccvr+dpsgd")
    trainer, start = loop.trainer, loop.down(loop.begin(), 1)
    seen = []

    def noise_of(part, place, k, t, times=1):
        c = with_sums(
            trainer,
            trainer.client(k, start, part, start.weights, {}),
            k,
            replace(start, t=t),
            Release(part, place, 2),
        )
        for _ in range(times):
            seen.append(tuple(c.total(lambda b: {"zero": torch.zeros(4)})["zero"].tolist()))

    noise_of("ccvr", "trip 0", 0, 1, times=2)
    for part, place, k, t in (
        ("ccvr", "trip 0", 0, 2),
        ("ccvr", "trip 0", 1, 1),
        ("ccvr", "finish", 0, 1),
        ("fedproto", "trip 0", 0, 1),
    ):
        noise_of(part, place, k, t)
    assert len(set(seen)) == len(seen) == 6
    deviations = np.array(seen).std()
    assert 4 < deviations < 20


def test_noise_has_its_deviation_and_over_a_network_is_nobodys_to_draw_again():
    loop = loop_of("fedproto+dpsgd(sums_noise=2.0, sums_clip=3.0)")
    trainer, start = loop.trainer, loop.down(loop.begin(), 1)

    def drawn():
        c = with_sums(
            trainer, trainer.client(0, start, "x", start.weights, {}), 0, start, Release("x", "finish", 1)
        )
        return c.total(lambda b: {"zero": torch.zeros(20_000)})["zero"]

    first, again = drawn(), drawn()
    assert torch.equal(first, again), "in a simulation it comes from the study's seed"
    assert float(first.std()) == pytest.approx(6.0, rel=0.02)
    trainer.chance = SystemSource()
    secret, other = drawn(), drawn()
    alike = float(torch.corrcoef(torch.stack([secret, other]))[0, 1])
    assert abs(alike) < 0.06, "eight deviations of what chance gives"
    assert float(secret.std()) == pytest.approx(6.0, rel=0.04)


def by_hand(kinds, delta, renyi):
    """Epsilon by an accountant of dp-accounting."""
    import dp_accounting
    from dp_accounting import pld, rdp

    accountant = rdp.RdpAccountant() if renyi else pld.PLDAccountant(value_discretization_interval=1e-4)
    for times, q, z in kinds:
        accountant.compose(dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z)), times)
    return accountant.get_epsilon(delta)


@pytest.mark.parametrize(
    "kinds",
    [
        ((300, 0.05, 1.0), (1, 1.0, 10.0)),
        ((3000, 0.005, 0.8), (5, 1.0, 4.0)),
    ],
)
def test_steps_and_sums_together_cost_what_dp_accounting_says(kinds):
    ours = sampled_epsilon(kinds, 1e-5)
    tight = by_hand(kinds, 1e-5, renyi=False)
    assert tight - 5e-5 <= ours <= 1.005 * tight
    assert ours <= 1.02 * by_hand(kinds, 1e-5, renyi=True)
    assert ours > max(epsilon_after(*kind, 1e-5) for kind in kinds)


@pytest.mark.parametrize(
    ("text", "sums"),
    [
        ("dpsgd", 0),
        ("fedrdn+dpsgd", 1),
        ("ccvr+dpsgd", 2),
        ("fedrdn+fedproto+ccvr+dpsgd", 10),
    ],
)
def test_every_sum_of_a_run_is_in_its_account(text, sums):
    loop = loop_of(text.replace("dpsgd", "dpsgd(noise_multiplier=2.0, sums_noise=5.0)"), rounds=7)
    assert loop.fed.sums == sums
    told = accounts(loop.method, loop.fed, np.zeros((8, 3)), "drawn so")["dpsgd"]
    sizes = [int(n) for n in loop.fed.sizes if n]
    each = [
        sampled_epsilon(((7 * -(-n // 16), min(1.0, 16 / n), 2.0), (sums, 1.0, 5.0)), 1e-5) for n in sizes
    ]
    assert told.epsilons[0][0] == pytest.approx(max(each), abs=2e-6)
    said = f"{sums} sums over its samples, each" if sums > 1 else "a sum over its samples"
    assert (f"{said} with noise 5 x clip 1" in told.release) == bool(sums)


def test_a_count_that_may_be_noise_is_unknown_and_said_before_round_1():
    loop = loop_of("fedrdn+dpsgd(sums_noise=10.0)")
    ((code, text),) = loop.run.remarks
    assert code == "E128"
    assert "5 of 7 clients have no more than 30 samples" in text
    (trip,), start = FedRDN().trips, loop.down(loop.begin(), 0)
    sent = {
        r.client: r.shares["fedrdn"]
        for r in loop.trainer.visit(trip, loop.method.parts[0], start, range(8), {})
    }
    assert sent[1]["mu"].tolist() == [0.0] * 3
    assert sent[1]["sigma"].tolist() == [1.0] * 3
    assert not [r for r in loop_of("fedrdn+dpsgd(sums_noise=0.1)").run.remarks if "30 samples" in r[1]]
    assert loop_of("dpsgd").run.remarks == ()


def with_trip(client, sums=1):
    """A Part whose one trip runs `client`, and shares what it returns, a number."""

    @dataclass(frozen=True)
    class Asking(Part):
        name = "asking"

        @property
        def trips(self):
            return (
                Trip(
                    lambda t, T: t == 0,
                    client,
                    lambda w, s, ups, fed: (w, s),
                    lambda fed: {"v": Share(())},
                    sums=sums,
                ),
            )

    return Method(Asking(), DPSGD())


READS = {
    "batches": lambda w, c: {"v": sum(b.x.sum() for b in c.batches())},
    "sample": lambda w, c: {"v": c.sample(1, "x").x.sum()},
    "counts": lambda w, c: {"v": c.counts.sum()},
}


@pytest.mark.parametrize("read", READS)
def test_a_part_that_says_sums_only_and_reads_samples_is_stopped_in_a_sentence(read):
    with pytest.raises(
        UsageError,
        match=r"E108 a hook reads the client's (samples|class counts), which no noise of 'dpsgd' covers",
    ):
        conformance.train_run(with_trip(READS[read]), rounds=1)


def test_a_sum_more_than_declared_is_refused_because_epsilon_does_not_count_it():
    def twice(w, c):
        return {"v": c.total(pixels)["n"] + c.total(pixels)["n"]}

    conformance.train_run(with_trip(twice, sums=2), rounds=1)
    with pytest.raises(
        UsageError,
        match="E108 'asking' asks for more sums over samples than the 1 of 'trip 0' that it declares",
    ):
        conformance.train_run(with_trip(twice, sums=1), rounds=1)


def test_a_trip_that_declares_nothing_is_refused_before_anything_trains():
    with pytest.raises(UsageError, match="E107 'asking' and 'dpsgd' cannot be combined: its own exchange"):
        conformance.loop_for(with_trip(lambda w, c: {"v": torch.zeros(())}, sums=0))
    with pytest.raises(UsageError, match="E107 'ccvr' and 'dpsgd' cannot be combined: its own exchange"):
        conformance.loop_for(registry.parse("ccvr(mode=features)+dpsgd"))


@pytest.mark.parametrize("name", ["feddecorr", "propfair"])
def test_a_loss_that_mixes_samples_is_refused_because_none_are_mixed_here(name):
    with pytest.raises(UsageError, match=f"E107 '{name}' and 'dpsgd' cannot be combined: its hook loss"):
        conformance.loop_for(registry.parse(f"{name}+dpsgd"))


ALONE = (
    "fedprox",
    "fedntd",
    "fedsr",
    "fedproto",
    "fedrdn",
    "standardise",
    "fedrdn(variant=official)",
    "fedgen_images",
    "norm(mean=[0.5, 0.5, 0.5], std=[0.2, 0.2, 0.2])",
)


def test_the_list_of_what_sees_one_sample_at_a_time_is_whole():
    named = {part.name for text in ALONE for part in registry.parse(text).parts}
    assert named == {p.name for n in catalogue.entries() for p in registry.parse(n).parts if p.alone}


@pytest.mark.parametrize("text", ALONE)
def test_a_batch_trains_as_its_samples_one_by_one_do(text):
    """What `alone` declares: the mean loss of a batch and its gradient are the means of the samples' own."""
    from unskew.round.lane_views import LaneViews
    from unskew.round.layer_kernels import Kernels, use_kernels
    from unskew.round.loss import ClientLoss, StepInputs
    from unskew.round.noise import draw

    loop = loop_of(text, lanes="1")
    trainer, start = loop.trainer, loop.down(loop.begin(), 1)
    rows = torch.as_tensor(trainer.samples.rows[4][:6])
    laws = {p.name: p.noise(loop.fed, start.down.get(p.name, {})) for p in trainer.hooks["noise"]}
    noise = {p: {n: (draw(law, 1, 6, 0, p, n)[0], law) for n, law in own.items()} for p, own in laws.items()}
    kernels = Kernels(folded=False)
    loss = ClientLoss(trainer, LaneViews(trainer, start), kernels)
    lane = {
        "id": torch.tensor(4),
        "n": torch.tensor(33.0),
        "counts": torch.ones(3),
        "steps": torch.tensor(3.0),
        "step": torch.tensor(0),
        "sent": {},
        "kept": {},
        "mine": {},
        "round": {},
    }
    w = {n: t + 0.01 for n, t in start.weights.items()}

    def at(i):
        chosen = {
            p: {n: t[i] if law.per_sample else t for n, (t, law) in own.items()} for p, own in noise.items()
        }
        given = StepInputs(trainer.samples.y[rows[i]], torch.ones(len(rows[i])), chosen, (), lane)
        leaves = {n: t.clone().requires_grad_() for n, t in w.items()}
        with use_kernels(trainer.net, kernels):
            value = loss(leaves, trainer.samples.x[rows[i]], given)
        return [
            value.detach(),
            *torch.autograd.grad(value, [leaves[n] for n in trainer.learnt], allow_unused=True),
        ]

    whole, each = at(slice(0, 6)), [at(slice(i, i + 1)) for i in range(6)]
    for t, *of_samples in zip(whole, *each):
        if t is not None:
            torch.testing.assert_close(t, torch.stack(of_samples).mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shares", ["ccvr", "fedproto"])
def test_a_run_in_which_every_count_passes_for_noise_comes_to_its_end(shares):
    """E128 says so beforehand; CCVR then ended, after all training, with torch's words on an empty list."""
    conformance.train_run(registry.parse(f"{shares}+dpsgd(sums_noise=50.0)"), rounds=2)
