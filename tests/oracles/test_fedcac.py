"""FedCAC (Wu et al., ICCV 2023, eq. 5 to 9): critical weights from clients with the same ones, all others
from everybody.

c = |(w_k - w_k0) w_k| by tensor; its largest floor(tau N) are M_k.   O_kj = 1 - |M_k - M_j| / (2 |M_k|)
v_k = mean of w_j over j = k and O_kj >= mean O + t / beta (max O - mean O).   Client k is sent M_k v_k + (1 -
M_k) w.
"""

import torch

from tests.oracles.agreement import agree
from tests.oracles.personal import Dispatched
from tests.oracles.tiny import Case, Weights
from tests.oracles.values import Reply
from unskew.methods.fedcac import FedCAC as Engine


class FedCAC(Dispatched):
    part = "fedcac"
    tau = 0.5
    beta = 0.0

    def begin(self) -> None:
        self.M = [
            {n: torch.zeros_like(self.w[n], dtype=torch.bool) for n in self.learned}
            for _ in range(self.clients)
        ]
        self.v = [{n: self.w[n] for n in self.learned} for _ in range(self.clients)]
        self.note()

    def note(self) -> None:
        self.slice = {"M": self.rows(self.M), "v": self.rows(self.v)}

    def sent_to(self, k: int) -> Weights:
        return self.w | {n: torch.where(self.M[k][n], self.v[k][n], self.w[n]) for n in self.learned}

    def merge(self, replies: list[Reply]) -> Weights:
        for r in replies:
            sent = self.sent_to(r.k)
            self.M[r.k] = {n: self.largest(((r.w[n] - sent[n]) * r.w[n]).abs()) for n in self.learned}
        masks = {r.k: torch.cat([m.flatten() for m in self.M[r.k].values()]).double() for r in replies}
        like = {
            (k, j): float(1 - (masks[k] - masks[j]).abs().sum() / (2 * masks[k].sum()))
            for k in masks
            for j in masks
            if k != j
        }
        mean, most = sum(like.values()) / len(like), max(like.values())
        bound = mean + self.t / (self.beta or self.case.rounds / 5) * (most - mean)
        for k in masks:
            friends = [r for r in replies if r.k == k or like[k, r.k] >= bound]
            self.v[k] = {n: sum(r.w[n] for r in friends) / len(friends) for n in self.learned}  # type: ignore[misc]
        return super().merge(replies)

    def server(self, replies: list[Reply], old: Weights) -> None:
        self.note()

    def largest(self, c: torch.Tensor) -> torch.Tensor:
        N = c.numel()
        at = (
            c.flatten().sort(descending=True).values[int(self.tau * N) - 1]
            if int(self.tau * N)
            else torch.inf
        )
        return c >= (at if at > 1e-10 else c[c > 1e-10].min())


def test_fedcac() -> None:
    agree(Case("cnn", 0.9), FedCAC, tau=0.3, beta=4.0)


def test_a_fifth_of_the_rounds() -> None:
    """Of three, so that everybody is alone from the first on; a shorter run of a table keeps the share of
    it."""
    agree(Case(), FedCAC)
    assert Engine(beta=100).paced(500, 20).beta == 4


def test_where_most_numbers_did_not_move_those_that_did_are_critical() -> None:
    """Also nothing at all where none moved, and none of a tensor of one number, of which half is none."""
    moved, w = torch.tensor([[0.0, 0, 0, 2], [3, 1, 2, 4], [0, 0, 0, 0]]), torch.ones(3, 4)
    assert Engine().critical(moved, w).int().tolist() == [[0, 0, 0, 1], [1, 0, 0, 1], [0, 0, 0, 0]]
    assert not Engine().critical(moved[:, 3:], w[:, 3:]).any()


def test_one_client_alone_collaborates_with_itself() -> None:
    assert Engine().collaborators(torch.ones(1, 5), 1).tolist() == [[1.0]]
