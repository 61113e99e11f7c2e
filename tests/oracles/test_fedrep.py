"""FedRep (Collins et al., ICML 2021, algorithm 1): of a client's steps the first train its head, the others
the body.

Two optimisers, each with its own momentum and decay, take turns; each has one at least, and a single step is
of both. Heads stay; bodies are averaged by size.
"""

import pytest
import torch
from torch import nn

from tests.oracles.agreement import agree
from tests.oracles.personal import Divided, head_rests
from tests.oracles.tiny import Case
from tests.oracles.values import Client


class FedRep(Divided):
    part = "fedrep"
    head = 0.8

    def keeps(self, name: str) -> bool:
        return name.startswith("head.")

    def arrive(self, c: Client) -> None:
        self.turn = Turns(c, self.head, super().optimiser)

    def optimiser(self, learns: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        return self.turn  # type: ignore[return-value]


class Turns:
    """Whose turn it is follows from the number of the step."""

    def __init__(self, c: Client, head: float, make):
        self.c, self.head = c, head
        self.body = make([p for n, p in c.parameters.items() if not n.startswith("head.")], c.lr)
        self.own = make([p for n, p in c.parameters.items() if n.startswith("head.")], c.lr)

    def zero_grad(self) -> None:
        self.body.zero_grad()
        self.own.zero_grad()

    def step(self) -> None:
        rests = head_rests(self.c, self.head)
        for optimiser in [
            turn for turn, is_head in ((self.own, True), (self.body, False)) if not rests[is_head]
        ]:
            optimiser.step()


@pytest.mark.parametrize(
    "case", [Case("mlp", optimiser="sgd", momentum=0.9), Case("cnn", 0.9)], ids=lambda c: c.model
)
def test_fedrep(case: Case) -> None:
    agree(case, FedRep, head=0.6)


@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
def test_adam_counts_the_steps_of_head_and_body_apart(optimiser: str) -> None:
    """Counted together, the body's first step would be corrected for averages that it does not have, and half
    as long."""
    agree(Case("mlp", optimiser=optimiser, lr=0.01), FedRep, head=0.6)


@pytest.mark.parametrize("head", [0.8, 0.2])
def test_with_one_or_two_steps_neither_head_nor_body_is_left_out(head: float) -> None:
    agree(Case("mlp", 0.9, batch=8, epochs=1), FedRep, head=head)
