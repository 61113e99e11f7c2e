"""FedMTL (Smith et al., NeurIPS 2017), by steps on the primal: sum_k F_k(w_k) + lam tr(W O W').

O = I - 11'/K, or trace(S) S^-1 with S = (W'W + r)^(1/2): client k descends its terms, all other models as
they were last.
"""

from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from tests.oracles.agreement import agree
from tests.oracles.personal import Dispatched
from tests.oracles.tiny import Case, Weights
from tests.oracles.values import Client, Pass, Reply
from unskew.core.replies import Reply as Sent
from unskew.core.replies import Ups
from unskew.methods.fedmtl import FedMTL as Engine


class FedMTL(Dispatched):
    part = "fedmtl"
    lam = 0.1
    relation = "mean"
    ridge = 0.01

    def begin(self) -> None:
        self.own_w = [dict(self.w) for _ in range(self.clients)]
        self.server([], self.w)

    def sent_to(self, k: int) -> Weights:
        return self.own_w[k]

    def loss(self, c: Client, seen: Pass) -> Tensor:
        tied = torch.zeros(()).double()
        for j, w_j in enumerate(self.own_w):
            for n, p in c.model.named_parameters():
                tied = tied + self.O[c.k, j] * (p * (p if j == c.k else 2 * w_j[n])).sum()
        return super().loss(c, seen) + self.lam * tied

    def server(self, replies: list[Reply], old: Weights) -> None:
        for r in replies:
            self.own_w[r.k] = r.w
        K = self.clients
        W = torch.stack([torch.cat([w[n].flatten() for n in self.learned]) for w in self.own_w])
        self.O = torch.eye(K).double() - 1 / K
        if self.relation == "learned":
            gram = W @ W.T
            u, s, _ = torch.linalg.svd(gram + self.ridge * gram.trace() / K * torch.eye(K))
            S = u @ s.sqrt().diag() @ u.T
            self.O = S.trace() * torch.linalg.inv(S)
        apart = self.O - self.O.diagonal().diag()
        u = [{n: sum(a * w[n] for a, w in zip(row, self.own_w)) for n in self.learned} for row in apart]
        self.slice = {"w": self.rows(self.own_w), "u": self.rows(u), "o": self.O.diagonal()}  # type: ignore[arg-type]


def test_fedmtl() -> None:
    agree(Case("cnn", 0.9), FedMTL, lam=0.3)


def test_a_learned_relation() -> None:
    agree(Case(lr=0.02), FedMTL, relation="learned", lam=0.02, ridge=0.1)


def test_a_client_without_samples_is_where_its_terms_are_least() -> None:
    """The last of three: it stayed at the first model, 0, and drew the others there for good; its minimum is
    their mean."""
    fed = SimpleNamespace(clients=3, shared=("w",), sizes=np.array([1, 1, 0]))
    s = Engine().slice_of({"w": torch.zeros(3, 1)}, fed)  # type: ignore[arg-type]
    replies = Ups.of([Sent(k, 1.0, {"w": torch.full((1,), float(k + 1))}) for k in (0, 1)], 1)
    for expected in (0.0, 1.5):
        s = Engine().server(s, replies, fed)  # type: ignore[arg-type]
        torch.testing.assert_close(s["w"]["w"].flatten(), torch.tensor([1.0, 2.0, expected]))


def test_unrelated_models_are_not_tied_and_like_ones_are_drawn_together() -> None:
    """W'W = diag(4, 4), S = 2, O = 4 / 2 I;   of equal models the off-diagonal pulls: negative, with the
    ridge as its bound."""
    apart = Engine(relation="learned", ridge=1e-9).relation_matrix(torch.tensor([[2.0, 0.0], [0.0, 2.0]]))
    torch.testing.assert_close(apart, 2 * torch.eye(2).double(), rtol=0, atol=1e-6)
    alike = Engine(relation="learned", ridge=0.5).relation_matrix(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    assert alike[0, 1] < 0 < alike[0, 0]
