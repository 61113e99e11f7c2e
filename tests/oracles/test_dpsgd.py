"""DP-SGD (Abadi et al., CCS 2016, algorithm 1) as a plain loop over samples, in float64, given the same
samples and noise.

L_t: every sample with probability q = B / n;   g_t(x_i) = d loss(x_i) / d w;   g_t(x_i) <- g_t(x_i) / max(1,
|g_t(x_i)| / C) g_t = (sum_i g_t(x_i) + N(0, (z C)^2)) / (q n);   v <- momentum v + g_t;   w <- w - lr v
"""

from __future__ import annotations

import pytest
import torch

from unskew.core.shares import Noise
from unskew.methods import registry
from unskew.round.chunks import poisson_rows
from unskew.round.noise import draw
from unskew.round.randomness import SeededSource
from unskew.runs import conformance

CLIP, NOISE, BATCH, LR, EPOCHS = 0.7, 0.5, 16, 0.05, 2


def untouched(_step, _place, x):
    return x


def naive(loop, k, momentum, seen=untouched):
    """The weights of client k after one round from the initial ones. seen: (step, place in its batch, input)
    -> the input that the model trains on."""
    fed, data, n = loop.fed, loop.trainer.samples, int(loop.fed.sizes[k])
    steps = EPOCHS * -(-n // BATCH)
    drawn = poisson_rows(data.rows[k], steps, BATCH, SeededSource(fed.seed).samples(1, k))
    normal = SeededSource(fed.seed).normal(1, "dpsgd")
    w = {name: t.double() for name, t in fed.net.weights().items()}
    v = {name: torch.zeros_like(t) for name, t in w.items()}
    for step, rows in enumerate(drawn):
        total = {name: torch.zeros_like(t) for name, t in w.items()}
        for place, i in enumerate(rows.tolist()):
            x = seen(step, place, data.x[i : i + 1].double())
            leaves = {name: t.clone().requires_grad_() for name, t in w.items()}
            z = fed.net.run(leaves, x, train=True)[0]
            loss = -(data.y[i : i + 1].double() * z.log_softmax(1)).sum()
            g = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values()))))
            norm = sum(float(t.pow(2).sum()) for t in g.values()) ** 0.5
            for name, t in g.items():
                total[name] += t / max(1.0, norm / CLIP)
        for name, t in total.items():
            noisy = t + NOISE * CLIP * normal(tuple(t.shape), f"{k} {step} {name}")
            v[name] = momentum * v[name] + noisy / min(BATCH, n)
            w[name] = w[name] - LR * v[name]
    return w


@pytest.mark.parametrize(("lanes", "momentum"), [("1", 0.0), ("8", 0.9)])
@pytest.mark.parametrize("model", ["mlp(hidden=(8,))", "cnn_small"])
def test_the_engines_weights_are_those_of_the_plain_loop(lanes, momentum, model):
    method = registry.parse(f"dpsgd(clip={CLIP}, noise_multiplier={NOISE})")
    loop = conformance.loop_for(
        method, lanes=lanes, momentum=momentum, model=model, epochs=EPOCHS, batch=BATCH, lr=LR
    )
    start = loop.down(loop.begin(), 1)
    replies = {r.client: r for r in loop.trainer.train(start, [1, 5, 6], {})}
    for k, reply in replies.items():
        for name, expected in naive(loop, k, momentum).items():
            torch.testing.assert_close(reply.weights[name].double(), expected, rtol=0, atol=1e-6)
    assert sorted(replies) == [1, 5, 6]


@pytest.mark.parametrize("lanes", ["1", "8"])
def test_every_sample_has_numbers_of_its_own_whatever_the_other_clients_draw(lanes):
    """FedRDN beside it: an image is normalised by the pair its own number picks, once per draw."""
    method = registry.parse(f"fedrdn+dpsgd(clip={CLIP}, noise_multiplier={NOISE}, sums_noise=0.1)")
    loop = conformance.loop_for(
        method, lanes=lanes, model="mlp(hidden=(8,))", epochs=EPOCHS, batch=BATCH, lr=LR
    )
    state = loop.begin()
    table = {leaf: t.double() for leaf, t in state.slices["fedrdn"].items()}
    replies = {r.client: r for r in loop.trainer.train(loop.down(state, 1), [1, 5, 6], {})}
    for k, reply in replies.items():
        n = int(loop.fed.sizes[k])
        drawn = poisson_rows(
            loop.trainer.samples.rows[k], EPOCHS * -(-n // BATCH), BATCH, SeededSource(0).samples(1, k)
        )
        law = Noise("integers", (float(len(table["mu"])),))
        picks = draw(law, len(drawn), max(map(len, drawn)), loop.fed.seed, 1, k, "fedrdn", "of_pair")

        def seen(step, place, x, picks=picks):
            mu, sigma = (table[leaf][picks[step, place]][None, :, None, None] for leaf in ("mu", "sigma"))
            return (x - mu) / sigma

        for name, expected in naive(loop, k, 0.0, seen).items():
            torch.testing.assert_close(reply.weights[name].double(), expected, rtol=0, atol=1e-6)
