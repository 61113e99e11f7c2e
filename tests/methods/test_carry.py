"""The hook `carry`: a state that moves from step to step inside a client's local training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from tests.fixtures import assert_close, client
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.shares import Share
from unskew.errors import UsageError
from unskew.methods.fedsmoo import FedSMOO
from unskew.runs import conformance


@dataclass(frozen=True)
class Steps(Part):
    """Counts its steps in a leaf that begins as a private one; another leaf is what the first was one step
    before."""

    name: ClassVar[str] = "steps"
    leaf: str = "now"

    def shares(self, fed):
        return {name: Share((), kind="statistics", samples="client") for name in ("now", "old", "all")}

    def client_init(self, w, fed):
        return {"now": torch.zeros(())}

    def begin(self, w, c):
        return {"now": c.mine["now"], "old": -torch.ones(())}

    def carry(self, g, w, c):
        return {self.leaf: c.round["now"] + 1, "old": c.round["now"]}

    def finish(self, w, c):
        return {**c.round, "all": c.steps + c.mine["now"]}, {"now": c.round["now"]}


@pytest.mark.parametrize("lanes", ["1", "8"])
def test_each_step_finds_what_the_last_one_left_and_private_state_stays(lanes):
    made = conformance.loop_for(Method(Steps()), lanes=lanes)
    try:
        private = {1: {"steps": {"now": torch.tensor(100.0)}}}
        replies = made.trainer.train(made.down(made.begin(), 3), [0, 1, 2, 3], private)
    finally:
        made.trainer.close()
    assert (
        len({float(r.shares["steps"]["all"]) for r in replies}) > 2
    )  # clients take different numbers of steps
    for reply in replies:
        shared = {name: float(t) for name, t in reply.shares["steps"].items()}
        assert shared["now"] == shared["all"] == shared["old"] + 1
        assert (shared["now"] > 100) == (reply.client == 1)


def test_what_begin_did_not_make_is_refused():
    made = conformance.loop_for(Method(Steps(leaf="other")), lanes="8")
    with pytest.raises(
        UsageError, match="E127 'steps' carries 'other' to the next step, which its `begin` did not make"
    ):
        made.trainer.train(made.down(made.begin(), 1), [0, 1], {})
    made.trainer.close()


def test_fedsmoo_climbs_against_its_dual_variable_and_the_common_direction():
    """g - m - s = (3, 4) of length 5, so that e = (0.3, 0.4) for rho 0.5; m + e - s = (1.3, 0.4) - (0, 1)."""
    fed = type("Fed", (), {"shared": ("w",)})
    c = client(
        fed=fed,
        seen={"0": {"w": torch.tensor([4.0, 5.0])}},
        round={"m": {"w": torch.tensor([1.0, 0.0])}},
        down={"s": {"w": torch.tensor([0.0, 1.0])}},
    )
    w = {"w": torch.tensor([1.0, 1.0])}
    assert_close(FedSMOO(rho=0.5).perturb({}, w, c)["w"], [1.3, 1.4])
    assert_close(FedSMOO(rho=0.5).carry({}, w, c)["m"]["w"], [1.3, -0.6])
