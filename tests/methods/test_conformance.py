"""Every built-in method passes the checks that third-party methods must pass, and a broken one does not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from tests.samples import EVERYTHING, turn
from unskew.core.part import Part
from unskew.core.shares import Share
from unskew.methods import registry
from unskew.runs import conformance

pytestmark = pytest.mark.usefixtures("few_attempts")

OURS = [
    n
    for n in registry.names()
    if n not in ("fedavg", "fedgen", "fedgen_images", "feddpms", "pfedme", "pfedhn")
]
VARIANTS = [
    "flea(variant=official)",
    "fedrdn(variant=official)",
    "fedfa(variant=official)",
    "ccvr(mode=features)",
    "fedproto(aggregate_weights=False)",
    "fedbabu(finetune_epochs=1)",
    "feddecorr(form=paper)",
    "fedrs(soft=True)",
    "naivemix(per_batch=True)",
    "fedgen(steps=3)",
    "fedgen_images(stage=0, steps=2, batch_size=8, samples=8)",
    "feddpms(alpha=5, width=8)",
    "feddpms(alpha=5, width=8, mechanism=single)",
    "fedem(models=2)",
    "pfedme(K=2)",
    "pfedhn(hidden=8)",
]


ALONE = [c for c in conformance.CHECKS if c is not conformance.combines_with_other_methods]
"""test_pairs combines each of our methods with each other one."""
TURNS = (
    (conformance.is_deterministic, conformance.has_scores_in_every_scope),
    (
        conformance.gives_the_same_bits_for_any_number_of_workers,
        conformance.changes_no_argument_in_place,
    ),
    (conformance.ignores_padding, conformance.copes_with_absent_clients_and_empty_rounds),
    (conformance.agrees_for_one_lane_and_many,),
    (conformance.agrees_for_three_and_eight_lanes,),
    (conformance.resumes_to_the_same_bits,),
)
"""What is dearest to check: every method is checked for one of these lists, and `make matrix` for all.

Most lists train a second run that must end with the bits of the first, so each is a check of determinism,
too."""


def checks_of(text: str) -> list[conformance.Check]:
    mine = turn(text, len(TURNS))
    spared = [c for place, checks in enumerate(TURNS) if place != mine and not EVERYTHING for c in checks]
    return [c for c in ALONE if c not in spared]


@pytest.mark.parametrize("text", [*OURS, *VARIANTS])
def test_ours(text):
    (ours,) = registry.parse(text).parts
    failed = [f"{f.name}: {f.detail}" for f in conformance.check_method(ours, checks_of(text)) if not f.ok]
    assert not failed


@dataclass(frozen=True)
class Sloppy(Part):
    """Averages over padding, shares what it did not declare, and remembers on the Part."""

    name: ClassVar[str] = "sloppy"

    def loss(self, w, out, b, c):
        return out.raw.pow(2).mean()

    def finish(self, w, c):
        return {"secret": torch.zeros(3)}, {}


@dataclass(frozen=True)
class Wrong(Part):
    """Declares another shape than it sends."""

    name: ClassVar[str] = "wrong"

    def shares(self, fed):
        return {"s": Share((4,))}

    def finish(self, w, c):
        return {"s": torch.zeros(3)}, {}


@dataclass(frozen=True)
class Random(Part):
    """Draws its own random numbers."""

    name: ClassVar[str] = "random"

    def loss(self, w, out, b, c):
        return 0 * out.raw.sum() + b.mean((out.raw * float(torch.rand(()))).sum(-1))


@dataclass(frozen=True)
class Active(Part):
    """Claims to be neutral and is not."""

    pull: float = 1.0
    name = "active"
    neutral: ClassVar[dict[str, object]] = {"pull": 0.5}

    def loss(self, w, out, b, c):
        return self.pull * b.mean(out.raw.pow(2).sum(-1))


@dataclass(frozen=True)
class Branching(Part):
    """Decides by a tensor's value."""

    name: ClassVar[str] = "branching"

    def loss(self, w, out, b, c):
        size = b.mean(out.raw.pow(2).sum(-1))
        return size if size > 1 else 0 * size


@dataclass(frozen=True)
class Careless(Part):
    """Draws side by side what nobody seeded."""

    name: ClassVar[str] = "careless"

    def loss(self, w, out, b, c):
        return b.mean((out.raw * torch.rand_like(out.raw)).sum(-1))


@dataclass(frozen=True)
class Misspelt(Part):
    """Asks for what is not there."""

    name: ClassVar[str] = "misspelt"

    def loss(self, w, out, b, c):
        return b.mean(out.feature.sum(-1))


@dataclass(frozen=True)
class Spread(Part):
    """Takes the mean of numbers by sample and class, which a batch as large as the classes let pass."""

    name: ClassVar[str] = "spread"

    def loss(self, w, out, b, c):
        return b.mean(out.raw.pow(2))


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (Branching(), r"E127 .*test_conformance.py, line \d+ \(`return size if size > 1 .*decides by"),
        (Careless(), r"E127 .*test_conformance.py, line \d+ .*draws random numbers of its own"),
        (Spread(), r"E127 batch\.mean takes one number for each of the \d+ samples; a hook gave it \d+ x"),
        (
            Misspelt(),
            (
                r"E127 the hook `loss` of 'misspelt' failed in .*, line \d+ .*: AttributeError: 'Out' object"
                r" has no attribute 'feature'"
            ),
        ),
    ],
)
def test_a_rule_that_is_broken_is_named_once_with_its_line(broken, told):
    first, *others = (f for f in conformance.check_method(broken, conformance.CHECKS[:6]) if not f.ok)
    assert re.fullmatch(told + ".*", first.detail), first.detail
    one_lane = [f for f in others if "number of workers" in f.name]  # where the rule is not watched over
    said = {f.detail for f in others if f not in one_lane}
    # of a step of another size, where two workers train
    same = {d for d in said if re.fullmatch(told + ".*", d)}
    assert said - same == {"could not run, for the same reason"}


@pytest.mark.parametrize(
    ("broken", "caught"),
    [
        (Sloppy(), [conformance.ignores_padding, conformance.shares_only_what_it_declares]),
        (Wrong(), [conformance.shares_only_what_it_declares]),
        (Random(), [conformance.is_deterministic]),
        (Active(), [conformance.changes_nothing_with_neutral_settings]),
    ],
)
def test_broken_methods_are_caught(broken, caught):
    assert not [f.name for f in conformance.check_method(broken, caught) if f.ok]


@dataclass(frozen=True)
class Infinite(Part):
    """Sends weights without bounds."""

    name: ClassVar[str] = "infinite"

    def sends(self, w, c):
        return {n: t / 0 for n, t in w.items()}


@dataclass(frozen=True)
class Undefined(Part):
    """Its server divides zero by zero."""

    name: ClassVar[str] = "undefined"

    def refine(self, w, s, fed, t):
        return {n: 0 * v / 0 for n, v in w.items()}, s


def test_an_honest_reply_that_the_gate_refuses_fails():
    (done,) = conformance.check_method(Infinite(), [conformance.is_deterministic])
    assert not done.ok
    assert "the gate refused an honest reply: " in done.detail


def test_what_a_server_makes_of_sound_replies_must_be_finite():
    """Every round was skipped, and the checks spoke of a learning rate that is too high, or of nothing."""
    (done,) = conformance.check_method(Undefined(), [conformance.is_deterministic])
    assert not done.ok
    assert done.detail.startswith("the server's hooks, from finite replies: round 1: after the merge "), done
