"""DFedAvg (Sun et al. 2021, algorithm 1): x_k <- mean of what k and its neighbours in a ring trained."""

from types import SimpleNamespace

import numpy as np
import torch

from tests.oracles.agreement import agree
from tests.oracles.personal import Dispatched
from tests.oracles.tiny import Case, Weights
from tests.oracles.values import Reply
from unskew.core.replies import Reply as Sent
from unskew.core.replies import Ups
from unskew.methods.dfedavg import DFedAvg as Engine


class DFedAvg(Dispatched):
    part = "dfedavg"
    moves = False

    def begin(self) -> None:
        self.z = [dict(self.w) for _ in range(self.clients)]
        self.slice = {"z": self.rows(self.z), "u": self.rows(self.z)}

    def sent_to(self, k: int) -> Weights:
        return {n: self.slice["u"][n][k] for n in self.w}

    def server(self, replies: list[Reply], old: Weights) -> None:
        for r in replies:
            self.z[r.k] = r.w
        ring = list(range(self.clients))
        if self.moves:
            ring = torch.randperm(self.clients, generator=self.given.generator(self.t, "dfedavg")).tolist()
        u = list(self.z)
        for place, k in enumerate(ring):
            three = [self.z[ring[(place + step) % self.clients]] for step in (-1, 0, 1)]
            u[k] = {n: torch.stack([z[n] for z in three]).mean(0) for n in self.w}
        self.slice = {"z": self.rows(self.z), "u": self.rows(u)}


def test_dfedavg() -> None:
    agree(Case("cnn", 0.9), DFedAvg, moves=True)


def test_a_client_without_samples_passes_on_what_it_is_sent() -> None:
    """Client 2 of a ring of four: it counted with the first model, 0, for good, and its neighbours came to
    2/3 at most."""
    fed = SimpleNamespace(clients=4, seed=0, sizes=np.array([1, 1, 0, 1]))
    s = {"z": {"w": torch.zeros(4, 1)}, "u": {"w": torch.zeros(4, 1)}}
    replies = Ups.of([Sent(k, 1.0, {"w": torch.ones(1)}) for k in (0, 1, 3)], 1)
    s = Engine().server(s, replies, fed)  # type: ignore[arg-type]
    torch.testing.assert_close(s["u"]["w"], torch.tensor([[1.0], [2 / 3], [2 / 3], [2 / 3]]))
    s = Engine().server(s, replies, fed)  # type: ignore[arg-type]
    torch.testing.assert_close(s["u"]["w"], torch.tensor([[1.0], [8 / 9], [8 / 9], [8 / 9]]))


def test_a_ring_of_six_and_one_that_is_shorter_than_its_links() -> None:
    W = Engine().links(6, 0, 1)
    assert W[0].nonzero().flatten().tolist() == [0, 1, 5]
    assert W[3].nonzero().flatten().tolist() == [2, 3, 4]
    torch.testing.assert_close(Engine(neighbours=2).links(3, 0, 1), torch.full((3, 3), 1 / 3).double())
