"""What the last bits of noisy sums tell: no released number may exclude one of two neighbouring sets
(Mironov, CCS 2012).

Two sets of 16 samples differ in one sample: some of its inputs are not zero, those of everybody else are.
Without that sample the gradient of the first layer's weights of these inputs is a sum of zeros. An attacker
who knows the initial weights asks for every such weight whether noise exists that leads to the released value
from either sum.
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from unskew import data
from unskew.core.random_keys import NOISE_GRID, add_noise
from unskew.core.replies import Reply, Ups
from unskew.data.clients.partition import Index
from unskew.methods import registry
from unskew.privacy.dp import DP
from unskew.records.checkpoints import digest
from unskew.round.randomness import SeededSource, system_normal
from unskew.round.sample_privacy import NoisySums, Release
from unskew.runs import conformance
from unskew.runs.assemble import loop_of
from unskew.runs.conformance import short_settings
from unskew.runs.resolve import resolve

pytest.importorskip("dp_accounting", reason="the extra [dp] is not installed")

DRAWS, BATCH, INPUTS, OWN = 20, 16, 64, 8
"""Draws of each set, samples of a client, inputs, and inputs that only the one sample has."""
FIRST = "fc1.0.weight"


class Chosen(SeededSource):
    """Noise of the test's choice. numbers: by client, [units, own inputs] of the first layer; else 0."""

    def __init__(self, numbers: torch.Tensor):
        super().__init__(0)
        object.__setattr__(self, "numbers", numbers)

    def normal(self, t, part):
        def draw(shape, purpose):
            client, _, name = purpose.split()
            z = torch.zeros(shape, dtype=torch.float64)
            if name == FIRST:
                z[:, :OWN] = self.numbers[int(client)]
            return z

        return draw


def run_of(noise, lr, lanes="40"):
    """A run of 2 DRAWS clients: k has the one sample, k + DRAWS the same with its own inputs at zero."""
    rng, n = np.random.default_rng(11), 2 * DRAWS * BATCH
    x = np.tile(rng.random((n // 2, 1, 8, 8), dtype=np.float32), (2, 1, 1, 1))
    y, rows = np.tile(rng.integers(0, 3, n // 2), 2), np.arange(n).reshape(-1, BATCH)
    dataset = data.arrays(x, y, x[:60], y[:60], classes=("a", "b", "c"), name="rounding")
    built = data.build(dataset, "iid", 2 * DRAWS, rng, np.random.default_rng(8))
    built = dataclasses.replace(built, x=x, y=y, train=Index.of(list(rows)))
    chosen = short_settings(
        clients=2 * DRAWS, rounds=1, batch=BATCH, model="mlp(hidden=[6])", lr=lr, lanes=lanes
    )
    loop = loop_of(resolve(chosen, built, registry.parse(f"dpsgd(clip=1.0, noise_multiplier={noise})")))
    inputs = loop.trainer.samples.x.clone()
    inputs.view(n, INPUTS)[:, :OWN] = 0
    inputs.view(n, INPUTS)[rows[:DRAWS, 0], :OWN] = (
        torch.from_numpy(rng.random((DRAWS, OWN), dtype=np.float32)) + 0.5
    )
    loop.trainer.samples = dataclasses.replace(loop.trainer.samples, x=inputs)
    return loop


def released(loop, start, chance):
    """[K, units, own inputs]: what every client sends of these weights after its one step."""
    loop.trainer.chance = chance
    replies = loop.trainer.train(start, range(2 * DRAWS), {})
    return torch.stack([r.weights[FIRST][:, :OWN] for r in replies])


def impossible(loop, start, seen, mean, unit):
    """Which of the values `seen` no noise leads to from the sets that the clients hold.

    mean: what these send without noise. unit: how far noise of 1 moves a weight. Tried is noise around what
    real numbers ask for, twice as densely as float32 has it.
    """
    z = (mean.double() - seen.double()) / unit
    between = torch.from_numpy(np.spacing(np.abs(seen.numpy()))).double() / unit
    step = torch.maximum(torch.from_numpy(np.spacing(np.abs(z.float().numpy()))).double() / 2, between / 16)
    reached = torch.zeros(seen.shape, dtype=torch.bool)
    for i in range(-24, 25):
        reached |= released(loop, start, Chosen(z + i * step)) == seen
    return ~reached


@pytest.mark.parametrize(("noise", "lr"), [(1.4, 0.5)])
def test_every_released_weight_could_come_from_either_set(noise, lr):
    """Noise in float32 on a sum in float32 betrayed one weight in 70."""
    loop = run_of(noise, lr)
    start = loop.down(loop.begin(), 1)
    sent = released(loop, start, loop.trainer.chance)
    mean = released(loop, start, Chosen(torch.zeros(sent.shape, dtype=torch.float64)))
    moved = mean != start.weights[FIRST][:, :OWN]
    assert moved[:DRAWS].float().mean() > 0.4
    assert not moved[DRAWS:].any(), "the one sample alone has a gradient here"
    neighbour = torch.arange(2 * DRAWS).roll(DRAWS)
    for seen in (sent, sent[neighbour]):
        assert not impossible(loop, start, seen, mean, noise * lr / BATCH).any()


def test_one_lane_and_many_release_the_same_bits():
    sent = []
    for lanes in ("1", "3", "40"):
        loop = run_of(1.4, 0.5, lanes)
        replies = loop.trainer.train(loop.down(loop.begin(), 1), range(2 * DRAWS), {})
        sent.append(digest({f"{r.client}/{n}": t for r in replies for n, t in r.weights.items()}))
    assert len(set(sent)) == 1


@pytest.mark.parametrize("other", [0.0, 1e-9, -17.0, 2000.0])
def test_every_noisy_sum_could_be_that_of_another_total(other):
    """Also near 0, where floating-point numbers lie closest."""
    drawn = torch.cat([system_normal((5000,)), 1e-6 * system_normal((5000,))])
    total = torch.tensor(0.3, dtype=torch.float64)
    seen = add_noise(total, 1.4, drawn)
    assert torch.equal(add_noise(torch.tensor(other), 1.4, (seen - other) / 1.4), seen)
    assert (seen - total - 1.4 * drawn).abs().max() <= 1.4 * NOISE_GRID


def on_grid(values, step):
    """Whether all are multiples of the step, as float32 has them."""
    return torch.equal(((values.double() / step).round() * step).to(values.dtype), values)


def test_sums_over_samples_lie_on_the_grid_of_their_noise():
    loop = conformance.loop_for(registry.parse("fedrdn+dpsgd(sums_clip=0.8, sums_noise=2.0)"))
    start = loop.down(loop.begin(), 0)
    c = loop.trainer.client(0, start, "fedrdn", start.weights, {})
    with loop.trainer.evaluating():
        sums = NoisySums(loop.trainer, c, 0, start, Release("fedrdn", "finish", 1))
        values = sums(lambda b: {"x": b.x.flatten(1).sum(0)}, True)["x"]
    assert values.numel() == 192
    assert on_grid(values, 1.6 * NOISE_GRID)


def test_updates_and_the_adaptive_clip_of_dp_lie_on_the_grid_of_their_noise():
    """Where the weight is 0, a released weight has all bits of the noise."""
    fed = SimpleNamespace(shared=("a",), clients=10, sampled=0.4, rounds=5)
    ups = Ups.of([Reply(0, 1.0, {"a": torch.rand(1000)}, {})], 1)
    part = DP(epsilon=0, noise_multiplier=2.0, adaptive=True, clip_budget=0.25)
    slice_ = {"clip": torch.tensor(1.0, dtype=torch.float64)}
    replies, after = part.protect({"a": torch.zeros(1000)}, slice_, ups, fed, SeededSource(0).normal(1, "dp"))
    assert on_grid(4 * replies[0].weights["a"], 2.0 / 0.75**0.5 * NOISE_GRID)
    counted = -4 * float(after["clip"].log()) / part.rate / (2.0 * NOISE_GRID)  # in steps of its grid
    assert abs(counted) < 1 / NOISE_GRID, "the share of clients is not at an end of [0, 1]"
    assert counted == pytest.approx(round(counted), abs=1e-6)


def test_the_noisy_mean_of_latents_lies_on_the_grid_of_its_noise():
    """Of a mean of 0.01 with noise in float32, 44 % of the numbers could not have come from one of 0.3."""
    part = registry.parse("feddpms(mechanism=single)").parts[0]
    deviation = part.sigma / np.sqrt(part.alpha)
    for mean in (0.01, 0.3):
        generator = torch.Generator().manual_seed(1)
        (sent,) = part._noisy(torch.full((5000,), mean), 0, {}, None, generator)
        assert ((sent - mean).std() / deviation - 1).abs() < 0.05
        on_grid = (sent.double() / (NOISE_GRID * deviation)).round() * NOISE_GRID * deviation
        assert (on_grid.float() == sent).all()
