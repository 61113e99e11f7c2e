"""Weights that a Part keeps at clients beside the model are trained by that Part alone."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from unskew.core.method import Method
from unskew.core.part import Part
from unskew.methods import catalogue, registry
from unskew.runs import conformance


@dataclass(frozen=True)
class Still(Part):
    """Holds all that clients share, so that whatever else moves has the same surroundings in every method."""

    name = "still"

    def holds(self, c):
        return dict.fromkeys(c.fed.shared, c.step >= 0)


@dataclass(frozen=True)
class Pull(Part):
    """Pulls all weights and changes all gradients that its hooks are given, as a Part of a user's own may."""

    name = "pull"

    def loss(self, w, out, b, c):
        return sum((w[n] - c.start[n].detach()).pow(2).sum() for n in w)

    def grad(self, g, w, c):
        return {n: 0.5 * t + w[n] for n, t in g.items()}


@dataclass(frozen=True)
class Climb(Part):
    """Takes gradients along those of all weights that its hook is given."""

    name = "climb"
    climbs = 1

    def perturb(self, g, w, c):
        return w | {n: w[n] + t for n, t in g.items()}


@dataclass(frozen=True)
class Shift(Part):
    """Takes gradients elsewhere without looking at any, as FedLESAM does."""

    name = "shift"

    def perturb(self, g, w, c):
        return {n: 1.5 * t for n, t in w.items()}


def kept_beside(method, client=0):
    """What a client keeps beside the model after its first round."""
    loop = conformance.loop_for(method)
    (reply,) = loop.trainer.train(loop.down(loop.begin(), 1), [client], {})
    return {n: t for n, t in reply.private["kept"].items() if n in loop.fed.net.extra}


KEEPERS = (
    "apfl",
    "apple",
    "ditto",
    "fedbr",
    "fedcp",
    "feddbe",
    "feddpms",
    "fedem",
    "fedkd",
    "fedrod",
    "fedsr",
    "fml",
)


def test_the_list_of_methods_that_keep_weights_beside_the_model_is_whole():
    """But for feddpms, which names its weights for another model alone."""
    fed = conformance.run_for(Method()).fed
    parts = (registry.parse(name).parts[0] for name in catalogue.entries() if name != "feddpms")
    own = [part for part in parts if type(part).weights is not Part.weights]
    keep = [p.name for p in own if any(p.keeps(f"{p.name}.{n}", fed) for n in p.weights(fed))]
    assert {*keep, "feddpms"} == set(KEEPERS)


# its shares descend the loss with all that is added
@pytest.mark.parametrize("name", [n for n in KEEPERS if n != "apple"])
def test_no_other_part_moves_what_a_part_keeps_beside_the_model(name):
    parts = registry.parse(name).parts
    alone = kept_beside(Method(*parts, Still()))
    for others in ((Pull(), Climb()), (Shift(),)):
        beside = kept_beside(Method(*parts, Still(), *others))
        assert alone.keys() == beside.keys() != set()
        for n, t in alone.items():
            torch.testing.assert_close(beside[n], t, rtol=0, atol=1e-6)
