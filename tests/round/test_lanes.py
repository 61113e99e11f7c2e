"""Local training against the usual loop, and the promise about bits."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.round.training import SIZES, build, trainer
from unskew import models
from unskew.core.random_keys import key
from unskew.core.replies import Ups
from unskew.merge.mean import weighted_mean
from unskew.round import optimisers
from unskew.round.chunks import Recipe, chunks, steps, work_of
from unskew.round.trainer import Trainer


def usual(clients: Trainer, k: int, module: nn.Module, opt) -> dict[str, torch.Tensor]:
    """The usual loop: a copy of the model, torch.optim, one batch after another, in our row order."""
    model, recipe = copy.deepcopy(module).train(), clients.training.recipe
    optimiser = opt(model.parameters())
    rows, generator = clients.samples.rows[k], key(3, 1, k, "batch")
    orders = [rows[torch.randperm(len(rows), generator=generator).numpy()] for _ in range(recipe.epochs)]
    for order in orders:
        for i in range(0, len(order), recipe.batch):
            picked = order[i : i + recipe.batch]
            if recipe.has_norms and len(picked) == 1:
                if len(order) > 1:
                    continue
                for layer in model.modules():
                    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                        layer.eval()
            optimiser.zero_grad()
            F.cross_entropy(model(clients.samples.x[picked]), clients.samples.y[picked].argmax(1)).backward()
            optimiser.step()
    return {n: t for n, t in model.state_dict().items() if t.is_floating_point()}


BN = (3, 12, 12)


def with_norms(a=8, b=16):
    module = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, a, 3), nn.BatchNorm2d(a), nn.MaxPool2d(2), nn.ReLU()),
        nn.Sequential(
            nn.Conv2d(a, b, 3, padding=1, stride=2), nn.BatchNorm2d(b), nn.ReLU(), nn.AvgPool2d(2, 1)
        ),
        nn.Sequential(nn.Flatten(), nn.Linear(4 * b, 24), nn.BatchNorm1d(24), nn.ReLU()),
        nn.Linear(24, 4),
    )
    models.initialise(module, key("bn"))
    return module


class Anew:
    """An Adam that forgets after every step."""

    def __init__(self, parameters, lr, weight_decay):
        self.parameters, self.settings = list(parameters), {"lr": lr, "weight_decay": weight_decay}

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None

    def step(self):
        torch.optim.Adam(self.parameters, **self.settings).step()


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize(
    ("name", "optimiser", "settings", "opt"),
    [
        ("cnn_small", "sgd", {}, lambda p: torch.optim.SGD(p, 0.05)),
        (
            "mlp",
            "sgd",
            {"momentum": 0.9, "weight_decay": 0.01},
            lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01),
        ),
        ("cnn_small", "adam", {"weight_decay": 0.01}, lambda p: torch.optim.Adam(p, 0.05, weight_decay=0.01)),
        ("mlp", "adamw", {"weight_decay": 0.1}, lambda p: torch.optim.AdamW(p, 0.05, weight_decay=0.1)),
        ("mlp", "sign", {"weight_decay": 0.01}, lambda p: Anew(p, 0.05, weight_decay=0.01)),
    ],
)
def test_equals_the_usual_loop(lanes, optimiser, settings, opt, name):
    module = build(name, (1, 8, 8))
    clients, start = trainer(module, (1, 8, 8), lanes=lanes, optimiser=optimiser, **settings)
    replies = clients.train(start, range(len(SIZES)), {})
    assert [r.client for r in replies] == [0, 1, 2, 3, 4, 5, 6]  # client 7 has no samples
    for r in replies:
        expected = usual(clients, r.client, module, opt)
        apart = torch.cat([(r.weights[n] - t).abs().flatten() for n, t in expected.items()])
        if optimiser != "sgd":  # where a gradient is rounding alone, Adam's first step is its sign
            apart = apart.sort().values[: int(0.998 * len(apart))]
        assert float(apart.max()) < 2e-5, (r.client, float(apart.max()))


@pytest.mark.parametrize("lanes", [1, 8])
def test_batch_normalisation_equals_the_usual_loop(lanes):
    """Unequal clients, a dropped batch of one, a batch of two that is not, and a client with one sample."""
    module = with_norms()
    clients, start = trainer(module, BN, lanes=lanes)
    replies = clients.train(start, range(len(SIZES)), {})
    for r in replies:
        expected = usual(clients, r.client, module, lambda p: torch.optim.SGD(p, 0.05))
        for n, t in expected.items():
            assert float((r.weights[n] - t).abs().max()) < 1e-4, (r.client, n)


def trained(module, method, lanes, workers, cohort):
    clients, start = trainer(module, BN, method, lanes, workers)
    replies = clients.train(start, cohort, {})
    return {r.client: r.weights for r in replies}


def apart(one, other):
    """The largest difference between two sets of clients' weights, over the clients both have."""
    return max(
        float((t - one[k][n]).abs().max()) for k in one.keys() & other.keys() for n, t in other[k].items()
    )


@pytest.mark.parametrize("method", ["fedavg", "flea(cut='0')+fedbn"])
def test_other_clients_and_the_number_of_workers_change_no_bit(method):
    """With channels that fill vector registers; neighbours then change nothing, either."""
    first = trained(with_norms(), method, 8, 1, range(7))
    assert apart(first, trained(with_norms(), method, 8, 2, [4, 2, 0, 6, 1, 3, 5])) == 0
    if method == "fedavg":
        assert all(apart(first, trained(with_norms(), method, 8, 1, some)) == 0 for some in ([5], [0, 5]))


@pytest.mark.parametrize("method", ["flea(cut='0')+fedbn", "rebafl+scaffold"])
def test_neighbours_and_number_of_lanes_stay_within_rounding(method):
    """Channels that are no multiple of 8 leave vector registers half full; kernels for other widths round
    otherwise."""
    first = trained(with_norms(6, 10), method, 8, 1, range(7))
    for lanes, cohort in ((3, range(7)), (8, [5, 0])):
        assert apart(first, trained(with_norms(6, 10), method, lanes, 1, cohort)) < 1e-5


def test_dropout_masks_belong_to_the_client():
    def net():
        module = nn.Sequential(
            nn.Flatten(), nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5)), nn.Linear(16, 4)
        )
        models.initialise(module, key("drop"))
        return module

    ends = []
    for lanes in (1, 3, 8):
        clients, start = trainer(net(), (1, 8, 8), lanes=lanes)
        ends.append(clients.train(start, range(7), {}))
    for a, b, c in zip(*ends):
        assert all(torch.equal(b.weights[n], c.weights[n]) for n in b.weights)
        assert max(float((a.weights[n] - b.weights[n]).abs().max()) for n in a.weights) < 1e-5
    clients, start = trainer(
        nn.Sequential(net()[0], nn.Sequential(*list(net()[1])[:2]), net()[2]), (1, 8, 8), lanes=3
    )
    plain = clients.train(start, [0], {})[0]
    assert any(not torch.equal(t, u) for t, u in zip(plain.weights.values(), ends[1][0].weights.values()))


def test_one_client_federation_is_centralised_training():
    module = build("cnn_small", (1, 8, 8))
    clients, start = trainer(module, (1, 8, 8), lanes=1)
    reply = clients.train(start, [4], {})[0]
    merged = weighted_mean(start.weights, Ups.of([reply]))
    assert all(torch.equal(merged[n], reply.weights[n]) for n in reply.weights)


def test_schedule_of_unequal_clients():
    recipe = Recipe(batch=16, epochs=1, has_norms=True)
    assert [
        (w.full, w.short, w.frozen)
        for w in (work_of(k, n, recipe) for k, n in enumerate((33, 32, 1, 40, 5, 18)))
    ] == [
        (2, 0, False),
        (2, 0, False),
        (0, 1, True),
        (2, 8, False),
        (0, 5, False),
        (1, 2, False),
    ]
    sizes = np.array([40, 24, 8, 41, 0])
    plan = chunks(range(5), sizes, Recipe(16, 1, False), 8)
    assert sorted(w.client for c in plan for w in c.work) == [0, 1, 2, 3]
    (mine,) = [c for c in plan if c.pad == 8]
    assert [w.client for w in mine.work] == [0, 1, 2]
    taken = steps(
        mine,
        {w.client: np.arange(sizes[w.client])[None] + 100 * w.client for w in mine.work},
        Recipe(16, 1, False),
    )
    assert [(s.active, s.size, s.short) for s in taken] == [(2, 16, False), (1, 16, False), (3, 8, True)]
    assert taken[2].rows_GB[2].tolist() == list(range(200, 208))
    assert taken[2].local_G.tolist() == [2, 1, 0]


def test_adam_corrects_each_lanes_own_step():
    """A lane that took fewer steps so far must not be corrected for its neighbours'."""
    w = torch.ones(2, 3)
    adam = optimisers.Adam(0.1)
    adam.start([w])
    adam.step([w], [torch.ones(2, 3)], adam.state, torch.tensor([0, 5]))
    first, sixth = 0.1 * 1.0, 0.1 * (0.1 / (1 - 0.9**6)) / ((0.001 / (1 - 0.999**6)) ** 0.5)
    torch.testing.assert_close(1 - w[:, 0], torch.tensor([first, sixth]), rtol=1e-4, atol=0)
