"""FedFomo (Zhang et al., ICLR 2021, eq. 3 to 5): a_kj = (L_k(th_k) - L_k(th_j)) / |th_j - th_k|, th_k <- th_k
+ sum a+ (th_j - th_k) / sum a+.

The server sends client k the M models with the largest P_kj, and adds a_kj to P_kj. Models are those that
clients sent last.
"""

from types import SimpleNamespace
from typing import Any

import torch

from tests.oracles.agreement import agree
from tests.oracles.personal import Dispatched
from tests.oracles.plain import cross_entropy, loaded
from tests.oracles.tiny import Case, Tree, Weights
from tests.oracles.values import Client, Reply
from unskew.methods.fedfomo import FedFomo as Engine


class FedFomo(Dispatched):
    part = "fedfomo"
    models = 5
    explore = 0.3

    def begin(self) -> None:
        self.th = [dict(self.w) for _ in range(self.clients)]
        self.P = torch.zeros(self.clients, self.clients).double()
        self.has: set[int] = set()
        self.note()

    def note(self) -> None:
        has = torch.tensor([float(k in self.has) for k in range(self.clients)])
        self.slice = {
            "v": self.rows(self.th),
            "P": self.P.clone(),
            "has": has,
            "t": torch.tensor(float(self.t)),
        }

    def sent_to(self, k: int) -> Weights:
        return dict(self.th[k])

    def most_wanted(self, k: int) -> list[int]:
        """Without exploring."""
        there = sorted(self.has - {k})
        return sorted(there, key=lambda j: -float(self.P[k, j]))[: self.models]

    def arrive(self, c: Client) -> None:
        own, mixed, rows = self.th[c.k], dict(self.th[c.k]), self.given.rows(c.k)
        loss = {
            j: float(cross_entropy(self.evaluated(self.th[j], self.x[rows])[0], self.y[rows]))
            for j in self.has
        }
        self.a = {}
        if others := self.most_wanted(c.k):
            mine = float(cross_entropy(self.evaluated(own, self.x[rows])[0], self.y[rows]))
            for j in others:
                apart = sum(float((self.th[j][n] - own[n]).pow(2).sum()) for n in self.learned) ** 0.5
                self.a[j] = (mine - loss[j]) / (apart + 1e-5)
        positive = {j: a for j, a in self.a.items() if a > 0}
        for j, a in positive.items():
            for n in own:
                mixed[n] = mixed[n] + a / sum(positive.values()) * (self.th[j][n] - own[n])
        loaded(c.model, mixed)

    def leave(self, c: Client) -> Tree:
        return {"a": dict(self.a)}

    def server(self, replies: list[Reply], old: Weights) -> None:
        for r in replies:
            self.th[r.k] = r.w
            for j, a in r.shared["a"].items():
                self.P[r.k, j] += a
        self.has |= {r.k for r in replies}
        self.note()


def test_fedfomo() -> None:
    """Two of up to four models each; rounds 1 and 4 lie before and after all have sent one."""
    agree(
        Case("cnn", 0.9, attendance=((0, 1, 3), (1, 2, 3, 4), (0, 1, 2, 4))), FedFomo, models=2, explore=0.0
    )


def test_whose_models_a_client_is_sent() -> None:
    """Of clients that have sent one, the most wanted; its own where there is no other; all alike when it
    explores."""
    fed: Any = SimpleNamespace(clients=5, seed=0)
    s = {
        "has": torch.tensor([1.0, 0, 1, 1, 1]),
        "P": torch.tensor([[0, 9, 0.2, -1, 3.0]] * 5),
        "t": torch.tensor(2.0),
    }
    greedy = Engine(models=2, explore=0)
    assert greedy.others(s, 0, fed) == [4, 2]
    assert greedy.others(s | {"has": torch.tensor([1.0, 0, 0, 1, 0])}, 0, fed) == [3, 0]
    drawn = {
        tuple(Engine(models=2, explore=1).others(s | {"t": torch.tensor(float(t))}, 0, fed))
        for t in range(60)
    }
    assert drawn == {(i, j) for i in (2, 3, 4) for j in (2, 3, 4) if i != j}
