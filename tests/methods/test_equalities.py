"""A method at its neutral setting is the method it came from: the same weights after three rounds."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from unskew import data
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.data.clients.partition import Index
from unskew.methods import registry
from unskew.methods.fedmix import FedMix
from unskew.methods.naivemix import NaiveMix
from unskew.runs import conformance
from unskew.runs.assemble import loop_of
from unskew.runs.resolve import resolve


def weights(text, rounds=3, federation=None, model=None, **changes):
    method = registry.parse(text) if isinstance(text, str) else text
    made = loop_of(
        resolve(
            conformance.short_settings(**changes), federation or conformance.small_federation(), method, model
        )
    )
    try:
        state = made.begin()
        for t in range(1, rounds + 1):
            state, _ = made.round(state, t)
        return {n: v for n, v in state.weights.items() if "." in n and not n.startswith("fedbr.")}
    finally:
        made.trainer.close()


def equal_sizes():
    """Six clients of 12 samples each."""
    fed = conformance.small_federation()
    train = Index.of([np.arange(12 * k, 12 * k + 12) for k in range(6)])
    return dataclasses.replace(fed, train=train, test=Index.of([fed.test[k] for k in range(6)]), names=None)


def apart(a, b):
    assert a.keys() == b.keys()
    return max(float((a[n] - b[n]).abs().max()) for n in a)


NEUTRAL = [
    "fedprox(mu=0)",
    "fedavgm(beta=0)",
    "fedntd(beta=0)",
    "feddecorr(beta=0)",
    "fedrs(alpha=1)",
    "fedbr(mu=0,lam=0)",
    "fedmix(lam=0)",
    "naivemix(lam=0)",
    "fedproto(lam=0)",
    "fedfa(p=0)",
    "rebafl(eps=1,mu=0)",
    "flea(alpha=0,lambda1=0,lambda2=0)",
    "feddata(share=0)",
    "moon(mu=0,width=0)",
    "fedgen(a=0,b=0)",
    "fedgen_images(stage=1,steps=2,batch_size=8,samples=8)",
    "clip_median(factor=1000000)",
    "multi_krum(share=0)",
]


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


@pytest.fixture(scope="module")
def fedavg():
    return weights("fedavg")


@pytest.mark.parametrize("text", NEUTRAL)
def test_neutral_settings_are_fedavg(text, fedavg):
    assert apart(weights(text), fedavg) < 1e-6


@pytest.mark.parametrize(("text", "other"), ALIKE, ids=[text for text, _ in ALIKE])
def test_a_method_that_has_another_as_its_special_case(text, other):
    assert apart(weights(text, federation=equal_sizes()), weights(other, federation=equal_sizes())) < 1e-5


@pytest.mark.parametrize("text", [t.split("(")[0] for t in NEUTRAL if t != "multi_krum(share=0)"])
def test_and_other_settings_are_not(text, fedavg):
    """So that the equalities above cannot hold because nothing happens at all."""
    stronger = {
        "fedprox": "fedprox(mu=1)",
        "clip_median": "clip_median(factor=0.5)",
        "fedgen_images": "fedgen_images(stage=0,steps=2,batch_size=8,samples=8)",
    }
    found = weights(stronger.get(text, text))
    assert found.keys() != fedavg.keys() or apart(found, fedavg) > 1e-5


@dataclasses.dataclass(frozen=True)
class Equally(Part):
    """FedAvg with equal weights for all clients."""

    name: ClassVar[str] = "equally"
    weighting: ClassVar[str] = "equal"


def test_scaffold_and_feddyn_begin_as_unweighted_fedavg():
    plain = weights(Method(Equally()), rounds=1)
    assert apart(weights("scaffold", rounds=1), plain) < 1e-6
    fed = loop_of(
        resolve(conformance.short_settings(), conformance.small_federation(), registry.parse("fedavg"))
    )
    fed.trainer.close()
    start = fed.fed.net.weights()
    answered = sum(n > 0 for n in conformance.SIZES)
    share = answered / len(
        conformance.SIZES
    )  # FedDyn's h counts absent clients as having stayed where they were
    moved = {n: start[n] + (1 + share) * (plain[n] - start[n]) for n in plain}
    assert apart(weights("feddyn(alpha=1e-9)", rounds=1), moved) < 1e-4


class Smooth(nn.Sequential):
    """Without corners: at a ReLU's corner the gradients of two mixtures differ in first order already."""

    def __init__(self):
        super().__init__(
            OrderedDict(
                flat=nn.Flatten(), fc=nn.Sequential(nn.Linear(192, 12), nn.Tanh()), head=nn.Linear(12, 3)
            )
        )


@dataclasses.dataclass(frozen=True)
class SamePairs(NaiveMix):
    """Random numbers go by a Part's name: under FedMix's it draws the same averages."""

    name: ClassVar[str] = "fedmix"
    clashes: ClassVar[dict[str, str]] = {}


def test_fedmix_is_naivemix_to_first_order():
    """Halving lam divides the difference by about four: what is left is of second order."""
    gaps = []
    torch.manual_seed(5)
    model = Smooth()
    for lam in (0.08, 0.04):
        pair = (
            weights(Method(part), rounds=1, model=model) for part in (SamePairs(lam=lam), FedMix(lam=lam))
        )
        gaps.append(apart(*pair))
    assert gaps[0] > 1e-6
    assert gaps[0] / gaps[1] > 3.3


def test_unskew_trains_the_model_of_its_pieces_where_all_answer():
    """Its own prior acts at test time only, and without statistics nothing else differs."""
    pieces = weights("rbsm(eps=0.3)+feddyn(alpha=0.1)")
    assert apart(weights("unskew(statistics=False)"), pieces) < 1e-6
    assert apart(weights("unskew"), pieces) > 1e-4


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
