"""pFedSim (Tan et al. 2023): after a warm-up by FedAvg, phi_kj = -ln(1 - cos of the heads), and the body is
sum_j phi_kj theta_j.

The head that client k is sent is its own. After the warm-up the common model stays as it is, and a client
that has not trained since is sent it.
"""

import math

import torch

from tests.oracles.agreement import agree
from tests.oracles.personal import Dispatched
from tests.oracles.tiny import Case, Tree, Weights
from tests.oracles.values import Client, Reply
from unskew.methods.pfedsim import similarity


class PFedSim(Dispatched):
    part = "pfedsim"
    warm = 0.5

    def begin(self) -> None:
        self.theta: dict[int, Weights] = {}
        self.note()

    @property
    def warming(self) -> bool:
        return self.t <= self.warm * self.case.rounds

    def sent_to(self, k: int) -> Weights:
        if k not in self.theta:
            return self.w
        phi = self.phi(k)
        body = {
            n: sum(p * self.theta[j][n] for j, p in phi.items()) for n in self.w if not n.startswith("head.")
        }
        return self.theta[k] | body  # type: ignore[return-value]

    def phi(self, k: int) -> dict[int, float]:
        s = {j: -math.log(1 - self.alike(k, j)) for j in self.theta}
        return {j: x / sum(s.values()) for j, x in s.items()}

    def alike(self, k: int, j: int) -> float:
        one, other = self.theta[k]["head.weight"], self.theta[j]["head.weight"]
        cosines = [float(a @ b / a.norm() / b.norm()) for a, b in zip(one, other)]
        return 0.9999 if k == j else min(0.9999, max(0.0, sum(cosines) / len(cosines)))

    def leave(self, c: Client) -> Tree:
        self.private[c.k] = {"w": c.weights}
        return {}

    def merge(self, replies: list[Reply]) -> Weights:
        if self.warming:
            return super().merge(replies)
        self.theta |= {r.k: r.w for r in replies}
        return self.w

    def server(self, replies: list[Reply], old: Weights) -> None:
        self.note()

    def note(self) -> None:
        """The engine's slice: zeros for a client without a model of its own, which is like no other and
        itself."""
        K, nothing = range(self.clients), {n: torch.zeros_like(t) for n, t in self.w.items()}
        phi = torch.eye(self.clients).double()
        for k in K if self.theta else ():
            row = self.phi(k) if k in self.theta else {}
            phi[k] = torch.tensor([row.get(j, 0.0) for j in K]) if row else 0
        has = torch.tensor([float(k in self.theta) for k in K])
        self.slice = {"theta": self.rows([self.theta.get(k, nothing) for k in K]), "has": has, "phi": phi}

    def own(self, k: int) -> Weights:
        if self.warming:
            return self.w
        return self.private[k]["w"] if k in self.private else self.sent_to(k)


def test_pfedsim() -> None:
    agree(Case("cnn", 0.9), PFedSim, warm=0.34)


def test_bodies_are_mixed_of_clients_that_trained_since_the_warm_up_and_heads_are_not() -> None:
    """Two clients with a = cos 60 degrees = 1/2: s = ln 2 beside 4 ln 10 to oneself; a third has nothing
    yet."""
    rows = torch.tensor([[[1.0, 0.0]], [[0.5, 0.75**0.5]], [[1.0, 0.0]]])
    phi = similarity(rows, torch.tensor([1.0, 1.0, 0.0]))
    other, itself = math.log(2), 4 * math.log(10)
    share = other / (other + itself)
    torch.testing.assert_close(phi[0], torch.tensor([1 - share, share, 0.0]))
    opposite = similarity(torch.tensor([[[1.0, 0.0]], [[-1.0, 0.0]]]), torch.ones(2))
    torch.testing.assert_close(opposite, torch.eye(2))
