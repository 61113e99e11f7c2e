"""Training on masks: lanes, scopes, methods that serve them and methods that are refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from tests.samples import a_part_of
from unskew import data
from unskew.config import Settings
from unskew.methods import registry
from unskew.methods.registry import names
from unskew.round.loop import remaining_rounds
from unskew.runs.assemble import loop_of
from unskew.runs.resolve import resolve
from unskew.tasks.task import dice

SITES = (9, 5, 8, 1)


def federation(side=16):
    """Bright squares on a dim ground at four sites, each darker than the one before."""
    rng = np.random.default_rng(4)
    site = np.repeat(np.arange(4), [2 * n for n in SITES])
    x = 0.2 * rng.random((len(site), 1, side, side)).astype(np.float32)
    y = np.zeros((len(site), side, side), np.uint8)
    for i, (a, b) in enumerate(rng.integers(1, side - 7, (len(site), 2))):
        y[i, a : a + 6, b : b + 6] = 1
    x = (x + 0.6 * y[:, None]) * (1 - 0.2 * site[:, None, None, None]).astype(np.float32)
    first = np.concatenate([np.arange(n) < n // 2 for n in np.bincount(site)])
    columns = {"site": site[first]}
    made = data.arrays(
        x[first],
        y[first],
        x[~first],
        y[~first],
        columns=columns,
        test_columns={"site": site[~first]},
        name="squares",
    )
    return data.build(made, "column:site", 4, np.random.default_rng(0), np.random.default_rng(1))


FEDERATION = federation()


def loop(method="fedavg", **changes):
    base = Settings(
        rounds=2, epochs=1, batch=4, workers=1, model="unet(base=4, levels=3)", optimiser="adam", lr=0.01
    )
    return loop_of(resolve(base.replace(**changes), FEDERATION, registry.parse(method)))


def trained(method="fedavg", **changes):
    made = loop(method, **changes)
    state = made.begin()
    made.evaluate(state, None)
    for after in remaining_rounds(made, state, lambda *_: None):
        state = after
    return made, state


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-4), (torch.float64, 1e-12)])
def test_lanes_equal_one_after_another(dtype, most):
    """Unequal clients, short batches and a single sample; in double precision only rounding is left."""
    ends = []
    for lanes in ("1", "4"):
        made = loop(lanes=lanes, optimiser="sgd", lr=0.02)
        samples = made.trainer.samples
        made.trainer.samples = dataclasses.replace(samples, x=samples.x.to(dtype), y=samples.y.to(dtype))
        start = made.down(made.begin(), 1)
        start = dataclasses.replace(start, weights={n: t.to(dtype) for n, t in start.weights.items()})
        ends.append(made.trainer.train(start, range(4), {}))
    for one, many in zip(*ends):
        for n, t in one.weights.items():
            assert float((t - many.weights[n]).abs().max()) < most, (one.client, n)
        assert any(float((t - start.weights[n]).abs().max()) > 1e-3 for n, t in one.weights.items())


def test_the_three_scopes_are_dice_of_images():
    made, state = trained()
    at = {
        (r["scope"], r["metric"], r["client"]): r["value"] for r in made.record.rows["metrics"] if r["t"] == 2
    }
    module = made.fed.net.module_with(state.weights)
    with torch.no_grad():
        guess = module(torch.as_tensor(FEDERATION.x_test)).argmax(1).numpy()
    each = dice(guess, FEDERATION.y_test, 2)
    assert at["global", "dice", None] == pytest.approx(each[:, 1].mean(), abs=1e-6)
    assert at["global", "dice_both", None] == pytest.approx(each.mean(), abs=1e-6)
    by_site = [each[rows] for rows in FEDERATION.test]
    for k, mine in enumerate(by_site):
        assert at["global@client", "dice", k] == pytest.approx(mine[:, 1].mean(), abs=1e-6)
        assert at["global@client", "dice_both", k] == pytest.approx(mine.mean(), abs=1e-6)
    means = [mine[:, 1].mean() for mine in by_site]
    assert at["global@client", "mean", None] == pytest.approx(np.mean(means), abs=1e-6)
    assert at["global@client", "worst", None] == pytest.approx(min(means), abs=1e-6)
    assert at["personal@client", "dice_both", None] == pytest.approx(
        np.mean([m.mean() for m in by_site]), abs=1e-6
    )


FIRST = ("fedbn", "norm", "local", "fedfa")
"""Tried always: they differ most."""
BOTH = [n for n in names() if n == "fedavg" or "segmentation" in type(registry.parse(n).parts[0]).tasks]


NORMALISED = {
    "dp": "add fedbn",
    "dpsgd": "no sample has a gradient of its own",
    "ifca": "would be those of all clusters",
}
"""Those that cannot train a U-Net, whose batches are normalised, and why."""


@pytest.mark.parametrize(
    "name", [*a_part_of((n for n in BOTH if n not in NORMALISED), 6, FIRST), "dp(delta=0.1)+fedbn"]
)
def test_methods_that_serve_masks_train_on_them(name):
    text = "norm(mean=(0.2,), std=(0.2,))" if name == "norm" else name
    optimiser = {"optimiser": "sgd", "lr": 0.05} if name in ("scaffold", "fedcm", "mofedsam", "apple") else {}
    made, state = trained(text, lanes="4", **optimiser)
    assert all(bool(torch.isfinite(t).all()) for t in state.weights.values())
    scope = "personal@client" if name == "local" else "global"
    _, values = made.record.series(scope, "mean" if name == "local" else "dice")
    assert values
    assert all(0 <= v <= 1 for v in values)
