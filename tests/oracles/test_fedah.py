"""FedAH (arXiv 2412.01295): FedALA's start of the head, then FedRep's head before body, and the mean of both
by size."""

import pytest

from tests.oracles.agreement import agree
from tests.oracles.personal import head_rests
from tests.oracles.test_fedala import FedALA
from tests.oracles.tiny import ATTENDANCE, Case
from tests.oracles.values import Client


class FedAH(FedALA):
    part = "fedah"
    first = 1
    head = 0.5

    def gradient(self, c: Client) -> None:
        rests = head_rests(c, self.head)
        for n, p in c.model.named_parameters():
            if rests[n.startswith("head.")]:
                p.grad = None  # torch's optimisers leave such a weight and its momentum alone


def test_fedah() -> None:
    agree(Case("cnn", 0.9), FedAH, eta=20.0, head=0.3)


@pytest.mark.parametrize("attendance", [ATTENDANCE, ((3,), (3,), (3,))], ids=["some", "one"])
def test_with_adam_the_body_begins_with_its_own_first_step(attendance: tuple[tuple[int, ...], ...]) -> None:
    """Its moments begin where the head's end, and bias is corrected by the steps that they have seen, be it
    in lanes or not."""
    agree(Case("mlp", optimiser="adam", lr=0.01, attendance=attendance), FedAH, eta=20.0, head=0.6)


def test_with_one_or_two_steps_neither_head_nor_body_is_left_out() -> None:
    agree(Case("mlp", batch=8, epochs=1), FedAH, eta=20.0, head=0.8)
