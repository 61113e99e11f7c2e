"""The runs of the test federation that checks look at: each is trained once, however many checks need it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import torch

from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.trees import Tree, flat
from unskew.engine.assemble import loop_of
from unskew.engine.disk.state import digest
from unskew.engine.server.loop import Loop
from unskew.engine.testbed import run_for

DROPPED = {f"E30{i}" for i in range(1, 9)}
"""The codes of the gate for replies that are not as declared, in training and in trips."""
NOT_FINITE = "E314"
"""The code of what the server has computed from sound replies, and left out."""


class CheckFailed(AssertionError):
    """A check that failed; the text is for the method's author."""


class Trained(NamedTuple):
    """A run that has been trained.

    digest: SHA-256 of its weights at the end; of_slices: of the Parts' slices at the end; loop: the run, whose trainer is
    closed; first, slices: the weights and the slices after round 1.
    """

    digest: str
    loop: Loop
    first: dict[str, torch.Tensor]
    slices: dict[str, Tree]
    of_slices: str


def loop(method: Method, **changes: object) -> Loop:
    """A run of the test federation that is ready to begin; its trainer must be closed."""
    return loop_of(run_for(method, **changes))


def train(method: Method, scored: bool = False, until: int | None = None, **changes: object) -> Trained:
    """A run of the test federation. scored: with scores after each round; until: only to this round, instead of to the last.

    Raises CheckFailed if the server computes what is not finite, or the gate drops a reply.
    """
    run = loop(method, **changes)
    first: dict[str, torch.Tensor] = {}
    slices: dict[str, Tree] = {}
    try:
        state = run.begin()
        for t in range(1, (until or run.settings.rounds) + 1):
            state, summary = run.round(state, t)
            if t == 1:
                first, slices = dict(state.weights), dict(state.slices)
            if scored:
                run.evaluate(state, summary)
        for event in run.record.rows["events"]:
            if event["code"] in DROPPED:
                raise CheckFailed(f"the gate refused an honest reply: {event['text']}")
            if event["code"] == NOT_FINITE:
                raise CheckFailed(f"the server's hooks, from finite replies: {event['text']}")
        return Trained(digest(state.weights), run, first, slices, digest(flat(state.slices)))
    finally:
        run.trainer.close()


@dataclass(eq=False)
class Subject:
    """The Part under check, and the runs that it has been through."""

    part: Part
    runs: dict[tuple[str, int, bool], Trained] = field(default_factory=dict)

    @property
    def method(self) -> Method:
        """The method made of this Part alone."""
        return Method(self.part)

    def run(self, lanes: str = "8", workers: int = 1, scored: bool = False) -> Trained:
        """Its run with so many lanes and workers, trained when it is first asked for. Raises CheckFailed as `train`.

        With one lane, which takes longest, only to round 2, where a client meets what it kept and was sent.
        """
        key = (lanes, workers, scored)
        if key not in self.runs:
            until = 2 if lanes == "1" else None
            self.runs[key] = train(self.method, scored, until, lanes=lanes, workers=workers)
        return self.runs[key]


@cache
def fedavg() -> Trained:
    """FedAvg's run, with eight lanes."""
    return train(Method(), lanes="8")
