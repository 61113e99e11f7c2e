"""The methods and rules that change what the server does, against hand-worked numbers."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import unskew
from tests.fixtures import assert_close, client
from unskew.core.replies import Reply, Ups
from unskew.errors import UsageError
from unskew.merge.clip import ClipMedian
from unskew.merge.krum import MultiKrum, krum
from unskew.merge.mean import weighted_mean
from unskew.merge.median import Median
from unskew.merge.trimmed import TrimmedMean
from unskew.methods import registry
from unskew.methods.afl import AFL, on_simplex
from unskew.methods.ccvr import draw, pool_statistics
from unskew.methods.fedadam import FedAdam
from unskew.methods.fedavgm import FedAvgM
from unskew.methods.feddisco import FedDisco
from unskew.methods.fedexp import FedExP
from unskew.methods.fedgen import diversity
from unskew.methods.fednova import FedNova
from unskew.methods.qffl import QFFL
from unskew.round.loop import Loop
from unskew.runs import hardware
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
    """Two clients take 1 and 9 steps of 0.1, all with the gradient 1; weighed by size, the momentum was
    1.64."""
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


def test_fedavgm_keeps_its_speed():
    part, w, s = (
        FedAvgM(beta=0.9),
        {"w": torch.zeros(2), "running_var": torch.ones(1)},
        {"v": {"w": torch.zeros(2)}},
    )
    w, s = part.merge(w, s, ups([1.0, 2]), FED)
    assert_close(w["w"], [1, 2])
    w, s = part.merge(w, s, ups([2.0, 2]), FED)
    assert_close(s["v"]["w"], [-1.9, -1.8])
    assert_close(w["w"], [2.9, 3.8])
    assert w["running_var"].tolist() == [0]  # statistics take the plain mean


@pytest.mark.parametrize(
    ("rule", "v", "step"),
    [
        ("adam", [1, 1.75], [0.5, 0.8610]),
        ("yogi", [1, 2], [0.5, 0.8284]),
        ("adagrad", [2, 5], [0.4142, 0.6180]),
    ],
)
def test_fedadam_takes_adaptive_steps(rule, v, step):
    part, start = FedAdam(lr=2, beta1=0.5, beta2=0.75, tau=1, rule=rule), {"w": torch.zeros(2)}
    w, s = part.merge(start, part.server_init(start, FED), ups([1.0, 2]), FED)
    assert_close(s["m"]["w"], [0.5, 1])
    assert_close(s["v"]["w"], v)
    assert_close(w["w"], step)
    assert w["running_var"].tolist() == [0]  # statistics take the plain mean


@pytest.mark.parametrize(
    ("last", "average", "height"), [(False, True, 5), (True, True, 2.5), (True, False, 5)]
)
def test_fedexp_steps_further_where_clients_disagree(last, average, height):
    """Each moved by sqrt(10), their mean by 1: the step is 20 / (2 * 2) long, and halved by the last
    average."""
    part, start = FedExP(eps=0, average=average), {"w": torch.zeros(2)}
    given = ups(
        [3.0, 1], [-3.0, 1], shares=[{"square": torch.tensor(10.0)}] * 2, part="fedexp", weighting="equal"
    )
    w, _ = part.merge(start, {}, dataclasses.replace(given, last=last), FED)
    assert_close(w["w"], [0, height])
    assert part.finish({"w": torch.tensor([3.0, 1])}, client(start=start, fed=FED))[0]["square"] == 10
    assert_close(
        FedExP(eps=1.0, average=False).merge(start, {}, given, FED)[0]["w"], [0, 2.5]
    )  # 20 / (2 * 2 * (1 + 1))


def test_fedadagrad_has_no_momentum():
    """v = 3^2 + 4^2, so that a change of 4 becomes 4 / (5 + 3)."""
    (part,) = registry.parse("fedadagrad(lr=1,tau=3)").parts
    before = {"m": {"w": torch.zeros(1)}, "v": {"w": torch.tensor([9.0])}}
    w, s = part.merge({"w": torch.zeros(1)}, before, ups([4.0]), FED)
    assert_close(w["w"], [0.5])
    assert_close(part.merge(w, s, ups([0.5]), FED)[0]["w"], [0.5])


def test_fedexp_weighed_by_size():
    """Three samples and one: their mean moved by sqrt(3.25)."""
    part, start = FedExP(eps=0, weighted=True), {"w": torch.zeros(2)}
    assert part.finish({"w": torch.tensor([3.0, 1])}, client(start=start, fed=FED))[0]["square"] == 10 * 40
    shares = [{"square": torch.tensor(v)} for v in (30.0, 10.0)]
    w, _ = part.merge(start, {}, ups([3.0, 1], [-3.0, 1], sizes=[3.0, 1], shares=shares, part="fedexp"), FED)
    assert_close(w["w"], [1.5 * 40 / 26, 40 / 26])


@pytest.mark.parametrize(
    ("changes", "said"), [({"weighting": "equal"}, "weighting: equal"), ({"cap": 0.4}, "cap: 0.4")]
)
def test_fedexp_weighed_by_size_is_weighed_otherwise_by_nobody(changes, said):
    """Its clients' numbers would be summed by size, and their models not."""
    given = dataclasses.replace(ups([3.0], shares=[{"square": torch.tensor(9.0)}], part="fedexp"), **changes)
    with pytest.raises(
        UsageError, match=rf"E108 .*fedexp.*{said} gives them other weights; leave out weighted=True"
    ):
        FedExP(weighted=True).merge({"w": torch.zeros(1)}, {}, given, FED)
    FedExP().merge({"w": torch.zeros(1)}, {}, given, FED)


def test_fedexp_where_nobody_moved():
    given = ups([0.0], shares=[{"square": torch.tensor(0.0)}], part="fedexp")
    assert FedExP(eps=0).merge({"w": torch.zeros(1)}, {}, given, FED)[0]["w"].tolist() == [0]


def test_qffl_weighs_clients_by_their_loss():
    """Losses 1 and 3, both moved by 1: (1/6 - 1/2) / (1/6 * 3 + 1/2 * 5/3)."""
    given = ups([1.0], [-1.0], shares=[{"loss": torch.tensor(v)} for v in (1.0, 3.0)], part="qffl")
    assert_close(QFFL(q=1).merge({"w": torch.zeros(1)}, {}, given, FED)[0]["w"], [-0.25])
    assert_close(QFFL(q=900).merge({"w": torch.zeros(1)}, {}, given, FED)[0]["w"], [-1 / 601])
    shorter = QFFL(q=1, L=1.0).merge({"w": torch.zeros(1)}, {}, given, FED)  # sums to 1/6 * 2 + 1/2 * 4/3 = 1
    assert_close(shorter[0]["w"], [-1 / 3])


def test_afl_moves_its_mixture_to_the_client_with_the_largest_loss():
    assert_close(on_simplex(torch.tensor([0.5, 0.8, -1.0])), [0.35, 0.65, 0])
    given = ups([4.0], [8.0], shares=[{"loss": torch.tensor(v)} for v in (1.0, 2.0)], part="afl")
    mixture = {"mixture": torch.tensor([0.75, 0.25, 0])}
    w, s = AFL(step=0.5 * FED.clients).merge({"w": torch.zeros(1)}, mixture, given, FED)
    assert_close(w["w"], [5])
    assert_close(s["mixture"], [0.5, 0.5, 0])  # (1.25, 1.25, 0)
    absent = dataclasses.replace(given, clients=torch.tensor([1, 2]))
    w, s = AFL(step=0.1 * FED.clients).merge(
        {"w": torch.ones(1)}, {"mixture": torch.tensor([1.0, 0, 0])}, absent, FED
    )
    assert w["w"].tolist() == [1]  # nobody who replied counts
    assert_close(s["mixture"], [0.9, 0, 0.1])


def test_feddisco_leaves_out_who_is_too_skewed():
    assert_close([FedDisco(measure=m).finish({}, client())[0]["d"] for m in ("kl", "l2")], [0.5363, 0.5401])
    even = client(counts=torch.full((3,), 7.0))
    assert [float(FedDisco(measure=m).finish({}, even)[0]["d"]) for m in ("kl", "l2")] == [0, 0]
    given = ups([1.0], [5.0], shares=[{"d": torch.tensor(v)} for v in (0.0, 1.3)], part="feddisco")
    start = {"w": torch.zeros(1)}
    assert FedDisco(measure="l2").merge(start, {}, given, FED)[0]["w"].tolist() == [1]
    assert_close(FedDisco(a=0.1, b=0).merge(start, {}, given, FED)[0]["w"], [(0.5 * 1 + 0.4 * 5) / 0.9])
    given = ups([1.0], [5.0], shares=[{"d": torch.tensor(v)} for v in (1.2, 1.3)], part="feddisco")
    assert FedDisco(measure="l2").merge(start, {}, given, FED)[0]["w"].tolist() == [
        3
    ]  # nothing is left of either


@pytest.mark.parametrize(
    ("rho", "a", "tau", "expected"),
    [(0.0, [2.0, 4.0], 2.5, [0.8125, 0.8750]), (0.9, [2.9, 9.049], 4.4372, [0.7705, 0.9019])],
)
def test_fednova_counts_every_step_the_same(rho, a, tau, expected):
    fed = SimpleNamespace(momentum=rho, optimiser="sgd", proximal=0.0)
    found = [FedNova().accumulated(client(fed=fed, lr=0.1, steps=torch.tensor(float(S)))) for S in (2, 4)]
    assert_close(found, a, 3)
    shares = [{"a": v, "steps": torch.tensor(S)} for v, S in zip(found, (2.0, 4.0))]
    start = {"w": torch.ones(2), "running_var": torch.ones(1)}
    given = ups([0.8, 1.0], [1.0, 0.2], sizes=[30.0, 10.0], shares=shares, part="fednova")
    merged, _ = FedNova().merge(start, {}, given, FED)
    assert_close(merged["w"], expected)
    assert_close(merged["running_var"], [0.25])
    assert_close(0.75 * found[0] + 0.25 * found[1], tau)


def accumulated(mu, steps, lr=0.1, optimiser="sgd"):
    fed = SimpleNamespace(momentum=0.0, optimiser=optimiser, proximal=mu)
    return FedNova().accumulated(client(fed=fed, lr=lr, steps=torch.tensor(steps)))


def test_fednova_with_a_proximal_pull():
    assert_close(accumulated(0.5, 3.0), (1 - 0.95**3) / 0.05)
    assert accumulated(0.5, 3.0, optimiser="adam") == 3


@pytest.mark.parametrize("mu", [1e-3, 1e-6, 1e-8, 1e-12, 1e-300, 5e-324, 0.0])
def test_fednova_adds_up_the_steps_of_a_weak_pull_exactly(mu):
    """M5: in float32, 1 - (1 - lr mu)^S was 16 % off at lr mu = 1e-7 and gave 0 / 0 at 1e-8."""
    shares = [math.exp(j * math.log1p(-mu)) for j in range(50)]
    assert accumulated(mu, 50.0, lr=1.0).item() == pytest.approx(sum(shares), rel=1e-6)


@pytest.mark.parametrize("mu", [0.5, 0.99, 1.0, 1.01, 1.7, 2.0, 2.5])
def test_fednova_adds_up_the_absolute_coefficients_of_a_strong_pull(mu):
    """M5: above lr mu = 1 the gradients of every other step enter with the opposite sign."""
    assert accumulated(mu, 6.0, lr=1.0).item() == pytest.approx(
        sum(abs(1 - mu) ** j for j in range(6)), rel=1e-5
    )


def test_ccvr_pools_moments_exactly():
    clients = [torch.tensor([[0.0, 0], [2, 0], [1, 3]]), torch.tensor([[4.0, 1], [6, 3]])]
    n = torch.tensor([[float(len(x)), 0] for x in clients])
    mean = torch.stack([torch.stack([x.mean(0), torch.zeros(2)]) for x in clients])
    cov = torch.stack([torch.stack([x.T.cov(), torch.zeros(2, 2)]) for x in clients])
    N, m, V = pool_statistics(n, mean, cov)
    assert N.tolist() == [5, 0]
    assert_close(m[0], [2.6, 1.4])
    assert_close(V[0], [[5.8, 1.7], [1.7, 2.3]])
    assert_close(V[0], torch.cat(clients).T.cov(), 5)
    assert torch.isfinite(V).all()


def test_ccvr_is_refused_before_it_trains_where_its_covariances_have_no_room(monkeypatch):
    facts = {"clients": 2, "classes": 2, "features": 40_000, "sizes": np.array([5, 5])}
    fed = SimpleNamespace(**facts, kind_at=lambda cut, kind: kind)
    told = (
        "E108 'ccvr' cannot run here: its server would hold 25.6 GB at once, 12.8 GB from each of 2 clients"
    )
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


def test_fedgen_diversity():
    eps, made = torch.tensor([[0.0, 1], [1, 1]]), torch.tensor([[1.0, 2, 3], [2, 2, 1]])
    assert_close(diversity(made, eps), 0.7788)


def test_clipping_to_the_median_norm():
    start = {"w": torch.zeros(2), "running_var": torch.ones(1)}
    merged, _ = ClipMedian().merge(start, {}, ups([3.0, 4], [0.0, 1], [0.0, 2]), FED)
    assert_close(merged["w"], [1.2 / 3, (1.6 + 1 + 2) / 3])
    equal, _ = ClipMedian().merge(start, {}, ups([3.0, 4], [4.0, 3]), FED)
    assert_close(equal["w"], [3.5, 3.5], 6)


def test_median_and_trimmed_mean_stand_one_wild_client():
    values = ([0.0, 1], [1.0, 2], [2.0, 3], [1e9, -1e9], [3.0, 2])
    start = {"w": torch.zeros(2), "running_var": torch.ones(1)}
    assert Median().merge(start, {}, ups(*values), FED)[0]["w"].tolist() == [2, 2]
    assert Median().merge(start, {}, ups(*values[:2]), FED)[0]["w"].tolist() == [0.5, 1.5]
    assert TrimmedMean(share=0.2).merge(start, {}, ups(*values), FED)[0]["w"].tolist() == [
        2,
        pytest.approx(5 / 3),
    ]
    plain = TrimmedMean(share=0.0).merge(start, {}, ups(*values[:3]), FED)[0]["w"]
    assert plain.tolist() == [1, 2]


def test_krum_keeps_the_crowd():
    points = torch.tensor([[0.0, 0], [0.1, 0], [0, 0.1], [50.0, 50], [0.1, 0.1]])
    assert krum(points, 1).tolist() == [0, 1, 2, 4]
    # the nearest two of each lie 17, 10, 25, 17 and 26 away in squares; in distances, 5, 4, 7, 5 and 6, the
    # third is last
    assert krum(torch.tensor([[0.0], [1.0], [4.0], [8.0], [9.0]]), 1).tolist() == [0, 1, 2, 3]
    start = {"w": torch.zeros(2), "running_var": torch.ones(1)}
    given = ups(*points.tolist(), sizes=[1.0, 1, 2, 100, 1])
    merged, _ = MultiKrum(share=0.2).merge(start, {}, given, FED)
    assert_close(merged["w"], [0.2 / 5, 0.3 / 5])
    alone, _ = MultiKrum().merge(start, {}, ups([7.0, 7]), FED)
    assert alone["w"].tolist() == [7, 7]
