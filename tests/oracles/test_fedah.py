"""FedAH (arXiv 2412.01295): FedALA's start of the head, then FedRep's head before body, and the mean of both by size."""

from tests.oracles.agreement import agree
from tests.oracles.personal import head_rests
from tests.oracles.test_fedala import FedALA
from tests.oracles.tiny import Case
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


def test_with_one_or_two_steps_neither_head_nor_body_is_left_out() -> None:
    agree(Case("mlp", batch=8, epochs=1), FedAH, eta=20.0, head=0.8)
