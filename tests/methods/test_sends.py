"""The hook `sends`: other weights leave a client than those it trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from tests.fixtures import assert_close, client
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.errors import UsageError
from unskew.methods import registry
from unskew.methods.fedadmm import FedADMM
from unskew.methods.fedspeed import FedSpeed
from unskew.runs import conformance

START, TRAINED = {"w": torch.tensor([1.0])}, {"w": torch.tensor([4.0]), "running_var": torch.tensor([9.0])}


@dataclass(frozen=True)
class Round(Part):
    """Sends the round's number for every weight."""

    name: ClassVar[str] = "round"

    def sends(self, w, c):
        return {n: 0 * t + c.t for n, t in w.items()}


@pytest.mark.parametrize("lanes", ["1", "8"])
def test_what_leaves_is_what_it_returns_and_what_is_kept_is_what_was_trained(lanes):
    made = conformance.loop_for(Method(Round(), *registry.parse("fedbn").parts), lanes=lanes)
    try:
        replies = made.trainer.train(made.down(made.begin(), 3), [1, 2], {})
    finally:
        made.trainer.close()
    for reply in replies:
        assert {float(t.min()) for t in reply.weights.values()} == {3}
        assert {float(t.max()) for t in reply.weights.values()} == {3}
        assert all(3 not in t for t in reply.private["kept"].values())
        assert reply.private["kept"].keys() == made.trainer.kept


def test_one_part_alone_says_what_is_sent():
    with pytest.raises(
        UsageError, match="E107 fedadmm and fedspeed each say what is sent for the trained weights"
    ):
        registry.parse("fedadmm+fedspeed")


def at_work(**facts):
    c = client(start=START, **facts)
    c.fed.shared = ("w",)
    return c


def test_fedadmm_sends_the_change_of_model_and_multiplier():
    """From 1 to 4, with 2 as its last model: (4 - 2) + (4 - 1) beside the received 1."""
    part, c = (
        FedADMM(rho=0.5),
        at_work(mine={"y": {"w": torch.tensor([0.25])}, "own": {"w": torch.tensor([2.0])}}),
    )
    assert part.sends(TRAINED, c)["w"].tolist() == [6]
    assert part.sends(TRAINED, c)["running_var"].tolist() == [9]
    assert FedADMM(own=False).sends(TRAINED, c)["w"].tolist() == [7]
    assert part.grad({"w": torch.tensor([1.0])}, TRAINED, c)["w"].tolist() == [1 + 0.25 + 0.5 * 3]
    mine = part.finish(TRAINED, c)[1]
    assert (mine["y"]["w"].tolist(), mine["own"]["w"].tolist()) == ([1.75], [4])


def test_fedspeed_sends_its_model_without_the_pull():
    part, c = FedSpeed(mu=0.5, rho=2.0), at_work(mine={"h": {"w": torch.tensor([0.25])}})
    assert part.finish(TRAINED, c)[1]["h"]["w"].tolist() == [-1.25]
    assert part.sends(TRAINED, c)["w"].tolist() == [4 + 1.25 / 0.5]
    assert part.grad({"w": torch.tensor([1.0])}, TRAINED, c)["w"].tolist() == [1 - 0.25 + 0.5 * 3]
    there = part.perturb(
        {"w": torch.tensor([3.0, -4])}, {"w": torch.zeros(2), "running_var": torch.ones(1)}, c
    )
    assert_close(there["w"], [1.2, -1.6])
