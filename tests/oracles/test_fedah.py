"""FedAH (arXiv 2412.01295): FedALA's start of the head, then FedRep's head before body, and the mean of both by size."""

from tests.oracles.agreement import agree
from tests.oracles.test_fedala import FedALA
from tests.oracles.tiny import Case
from tests.oracles.values import Client


class FedAH(FedALA):
    part = "fedah"
    first = 1
    head = 0.5

    def gradient(self, c: Client) -> None:
        trained = "head." if c.step < round(self.head * c.steps) else ""
        for n, p in c.model.named_parameters():
            if n.startswith("head.") != bool(trained):
                p.grad = None  # torch's optimisers leave such a weight and its momentum alone


def test_fedah() -> None:
    agree(Case("cnn", 0.9), FedAH, eta=20.0, head=0.3)
