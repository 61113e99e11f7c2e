"""Edges of methods that their oracles do not meet: limits of numbers, memory, and what the ledger says."""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import unskew
from tests.fixtures import assert_close, client
from unskew import data
from unskew.core.replies import Reply, Ups
from unskew.data.clients.partition import Index
from unskew.errors import UsageError
from unskew.merge.mean import weighted_mean
from unskew.methods import registry
from unskew.methods.ccvr import draw
from unskew.methods.fednova import FedNova
from unskew.round.loop import Loop
from unskew.runs import conformance, hardware
from unskew.runs.assemble import loop_of
from unskew.runs.resolve import resolve
from unskew.system import machine

FED = SimpleNamespace(shared=("w",), clients=8, proximal=0.0, rounds=2, lr=0.5, epochs=1, batch=1)


def ups(*values, sizes=None, shares=None, part="", weighting="size"):
    sizes = sizes or [1.0] * len(values)
    replies = [
        Reply(
            k,
            n,
            {"w": torch.tensor(v), "running_var": torch.tensor([float(k)])},
            {part: (shares or [{}] * len(values))[k]},
        )
        for k, (n, v) in enumerate(zip(sizes, values))
    ]
    return Ups.of(replies, 1, weighting).seen_by(part)


@pytest.mark.parametrize(
    ("name", "length", "m", "before"),
    [("fedcm", "pull", "delta", "before"), ("mofedsam", "length", "m", "w")],
)
def test_momentum_keeps_its_size_where_clients_take_unequal_numbers_of_steps(name, length, m, before):
    """Two clients take 1 and 9 steps of 0.1 along 1; weighed by size, the momentum was 1.64."""
    method = registry.parse(name)
    (part,) = method.parts
    s = {m: {"w": torch.zeros(1)}, before: {"w": torch.zeros(1)}, length: torch.ones(())}
    sent = ups(
        [-0.1],
        [-0.9],
        sizes=[1.0, 9.0],
        shares=[{length: torch.tensor(0.1)}, {length: torch.tensor(0.9)}],
        part=name,
        weighting=method.weighting,
    )
    w = weighted_mean({"w": torch.zeros(1)}, sent)
    assert_close(part.refine(w, part.server(s, sent, FED), FED, 1)[1][m]["w"], [1.0])


def accumulated(mu, steps, lr=0.1, optimiser="sgd"):
    fed = SimpleNamespace(momentum=0.0, optimiser=optimiser, proximal=mu)
    return FedNova().accumulated(client(fed=fed, lr=lr, steps=torch.tensor(steps)))


@pytest.mark.parametrize("mu", [1e-3, 1e-8, 5e-324, 0.0])
def test_fednova_adds_up_the_steps_of_a_weak_pull_exactly(mu):
    """In float32, 1 - (1 - lr mu)^S was 16 % off at lr mu = 1e-7 and gave 0 / 0 at 1e-8."""
    shares = [math.exp(j * math.log1p(-mu)) for j in range(50)]
    assert accumulated(mu, 50.0, lr=1.0).item() == pytest.approx(sum(shares), rel=1e-6)


@pytest.mark.parametrize("mu", [0.5, 1.0, 1.7, 2.5])
def test_fednova_adds_up_the_absolute_coefficients_of_a_strong_pull(mu):
    """Above lr mu = 1 the gradients of every other step enter with the opposite sign."""
    assert accumulated(mu, 6.0, lr=1.0).item() == pytest.approx(
        sum(abs(1 - mu) ** j for j in range(6)), rel=1e-5
    )


def test_ccvr_is_refused_before_it_trains_where_its_covariances_have_no_room(monkeypatch):
    facts = {"clients": 2, "classes": 2, "features": 40_000, "sizes": np.array([5, 5])}
    fed = SimpleNamespace(**facts, kind_at=lambda cut, kind: kind)
    told = "E108 'ccvr' cannot run here: its server would hold 25.6 GB at once, 12.8 GB from each of 2"
    with pytest.raises(UsageError, match=told):
        hardware.check_memory(registry.parse("ccvr"), fed, has=20 * 10**9)
    hardware.check_memory(registry.parse("ccvr"), fed, has=26 * 10**9)
    hardware.check_memory(registry.parse("ccvr(mode=features)"), fed, has=1)
    monkeypatch.setattr(machine.os, "sysconf", lambda name: 1)
    trained = []
    monkeypatch.setattr(Loop, "round", lambda *a: trained.append(a))
    with pytest.raises(UsageError, match="from each of 4 clients, and this machine has 1 B of memory"):
        unskew.run("ccvr", rounds=1, clients=4, model="mlp", workers=1)
    assert not trained


def test_ccvr_draws_from_a_singular_covariance():
    drawn = draw(
        torch.tensor([1.0, -1]), torch.tensor([[4.0, 2], [2, 1]]), 20000, torch.Generator().manual_seed(1)
    )
    assert_close(drawn.mean(0), [1, -1], 1)
    assert_close(drawn.T.cov(), [[4, 2], [2, 1]], 1)
    assert_close(drawn[:, 0] - 1, 2 * (drawn[:, 1] + 1), 5)


def begun(text, rounds=3, federation=None, model=None):
    """(the loop, the state after these rounds)."""
    federation = federation or conformance.small_federation()
    made = loop_of(resolve(conformance.short_settings(), federation, registry.parse(text), model))
    state = made.begin()
    for t in range(1, rounds + 1):
        state, _ = made.round(state, t)
    return made, state


@pytest.mark.parametrize(
    ("method", "reads"), [("fedprox", "sum"), ("fedprox+clip_median", "each"), ("fedgen", "each")]
)
def test_the_ledger_says_whether_the_server_reads_each_clients_weights(method, reads):
    loop, _ = begun(method, rounds=1)
    weights = [row for row in loop.record.rows["ledger"] if (row["way"], row["share"]) == ("up", "w")]
    assert [row["reads"] for row in weights] == [reads]


def weights(*given, **more):
    _, state = begun(*given, **more)
    return {n: v for n, v in state.weights.items() if "." in n and not n.startswith("fedbr.")}


def equal_sizes():
    """Six clients of 12 samples each."""
    fed = conformance.small_federation()
    train = Index.of([np.arange(12 * k, 12 * k + 12) for k in range(6)])
    return dataclasses.replace(fed, train=train, test=Index.of([fed.test[k] for k in range(6)]), names=None)


def apart(a, b):
    assert a.keys() == b.keys()
    return max(float((a[n] - b[n]).abs().max()) for n in a)


ALIKE = [
    ("fedvls(lam=0,mu=0)", "bsm"),
    ("mofedsam(rho=0,beta=0.5)", "fedcm(alpha=0.5)"),
    ("fedspeed(everyone=true)", "fedspeed"),
    ("pfedme(lam=100,rate=0.01,K=1)", "fedavg"),
    ("fedexp(eps=1000000,average=false)", "fedavg"),
    ("feddisco(b=1000000)", "fedavg"),
    ("fedadmm(own=false,rho=0.000001,lr=0.5)", "fedavg"),
]
"""Methods that are one in theory, where all clients answer and are of one size."""


@pytest.mark.parametrize(("text", "other"), ALIKE, ids=[text for text, _ in ALIKE])
def test_a_method_that_has_another_as_its_special_case(text, other):
    assert apart(weights(text, federation=equal_sizes()), weights(other, federation=equal_sizes())) < 1e-5


@pytest.mark.parametrize("shape", [(4,), (1, 6, 6)])
def test_unskew_runs_where_statistics_mean_nothing(shape):
    """Rows of a table have no channels, and a head without a bias has no place for a prior."""
    generator = np.random.default_rng(0)
    x, y = generator.standard_normal((48, *shape)).astype(np.float32), np.arange(48) % 3
    width = int(np.prod(shape))
    model = nn.Sequential(
        OrderedDict(flat=nn.Flatten(), body=nn.Linear(width, 5), head=nn.Linear(5, 3, bias=False))
    )
    fed = data.build(data.arrays(x, y, x[:9], y[:9]), "iid", 4, generator, generator)
    assert all(torch.isfinite(v).all() for v in weights("unskew", 2, fed, model).values())
