"""The learning rate over the steps of a round: by hand, against torch's optimisers, and what methods make of
it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from tests.round.training import LR, linear, orders, trainer
from unskew.core import Part, Share
from unskew.core.method import Method
from unskew.round.optimise import RateSchedule

SHAPE, COURSE = (2, 3, 1), RateSchedule(falls=True, warmup=0.25)
OPTIMISERS = {
    "sgd": lambda w: torch.optim.SGD(w, LR, momentum=0.9),
    "adam": lambda w: torch.optim.Adam(w, LR),
    "adamw": lambda w: torch.optim.AdamW(w, LR, weight_decay=0.1),
}


def factors(course: RateSchedule, steps: int) -> list[float]:
    local = torch.arange(steps)
    return course.at(local, torch.full_like(local, steps)).tolist()


def test_the_factors_by_hand():
    cosine = [0.5 * (1 + math.cos(math.pi * s / 4)) for s in range(4)]
    assert factors(RateSchedule(falls=True), 4) == pytest.approx(cosine)
    assert factors(RateSchedule(falls=True, warmup=0.34), 6) == pytest.approx([0.5, 1, *cosine])
    assert factors(RateSchedule(warmup=0.5), 4) == [0.5, 1, 1, 1]
    assert factors(RateSchedule(warmup=1), 4) == [0.25, 0.5, 0.75, 1]
    assert factors(COURSE, 1) == [1]  # a client of one step is not slowed
    assert RateSchedule().is_constant


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_every_optimiser_follows_it_as_torchs_do(name, lanes):
    """Clients of unequal numbers of steps, each on a course of its own length."""
    given = {"optimiser": name, "momentum": 0.9 * (name == "sgd"), "weight_decay": 0.1 * (name == "adamw")}
    clients, start = trainer(linear(6), SHAPE, lanes=lanes, sizes=(64, 18), course=COURSE, **given)
    replies = {r.client: r for r in clients.train(start, [0, 1], {})}
    clients.close()
    for k in (0, 1):
        w, b = (start.weights[n].clone().requires_grad_() for n in ("2.weight", "2.bias"))
        plan = [epoch[i : i + 16] for epoch in orders(clients, k, 2) for i in range(0, len(epoch), 16)]
        optimiser = OPTIMISERS[name]([w, b])
        for rate, rows in zip(factors(COURSE, len(plan)), plan):
            optimiser.param_groups[0]["lr"] = LR * rate
            x, y = clients.samples.x[rows].flatten(1), clients.samples.y[rows].argmax(1)
            optimiser.zero_grad()
            F.cross_entropy(x @ w.T + b, y).backward()
            optimiser.step()
        assert_close(replies[k].weights["2.weight"], w.detach(), rtol=0, atol=2e-6)
        assert_close(replies[k].weights["2.bias"], b.detach(), rtol=0, atol=2e-6)


def test_what_gradients_add_up_to():
    """A constant gradient of one moves a weight by the pull; torch's SGD says how far."""
    w = torch.zeros(1, requires_grad=True)
    optimiser = torch.optim.SGD([w], 1.0, momentum=0.9)
    for rate in factors(COURSE, 7):
        optimiser.param_groups[0]["lr"] = rate
        w.grad = torch.ones(1)
        optimiser.step()
    assert COURSE.pull(7, 0.9) == pytest.approx(-float(w.detach()), rel=1e-6)
    assert COURSE.pull(7, 0.0) == pytest.approx(sum(factors(COURSE, 7)))
    assert RateSchedule().pull(7, 0.0) == 7


@dataclass(frozen=True)
class Pulls(Part):
    """Tells what its client's steps add up to, as SCAFFOLD and FedNova read it."""

    name = "pulls"

    def shares(self, fed):
        return {"pull": Share((), what="pull", reads="each", kind="statistics", samples="client")}

    def finish(self, w, c):
        return {"pull": c.pull}, {}


@pytest.mark.parametrize("lanes", [1, 8])
def test_methods_are_told_the_sum_of_each_clients_own_steps(lanes):
    for momentum in (0.0, 0.9):
        given = {"lanes": lanes, "sizes": (64, 18), "momentum": momentum}
        clients, start = trainer(linear(6), SHAPE, Method(Pulls()), **given, course=COURSE)
        pulls = {r.client: float(r.shares["pulls"]["pull"]) for r in clients.train(start, [0, 1], {})}
        clients.close()
        assert pulls == pytest.approx({0: COURSE.pull(8, momentum), 1: COURSE.pull(4, momentum)}, rel=1e-6)
