"""FedPAC (Xu et al., ICLR 2023, eq. 3 to 8): heads of other clients by the shares with the least bias and
variance.

h_kc = p_c mean of f over client k's samples of class c,   V_k = (mean |f|^2 - sum_c |h_kc|^2) / n_k,   at the
received body a_k = argmin over the simplex of  sum_j a_j^2 V_j + sum_c |h_kc - sum_j a_j h_jc|^2: the best
over every set of clients, where inside the set all derivatives are equal.
"""

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from tests.oracles.agreement import agree
from tests.oracles.personal import Dispatched, head_rests
from tests.oracles.tiny import CLASSES, Case, Tree, Weights
from tests.oracles.values import Client, Pass, Reply
from unskew.methods.fedpac import head_shares


class FedPAC(Dispatched):
    part = "fedpac"
    lam = 1.0
    head = 0.2

    def begin(self) -> None:
        D = self.evaluated(self.w, self.x_test)[1].shape[1]
        heads = self.rows([{n: t for n, t in self.w.items() if n.startswith("head.")}] * self.clients)
        self.slice = {"z": torch.zeros(CLASSES, D), "known": torch.zeros(CLASSES), "head": heads}

    def sent_to(self, k: int) -> Weights:
        return self.w | {n: t[k] for n, t in self.slice["head"].items()}

    def by_class(self, w: Weights, k: int) -> dict[int, Tensor]:
        """The features of client k's samples, by class."""
        rows = self.given.rows(k)
        f, label = self.evaluated(w, self.x[rows])[1], self.y[rows].argmax(1)
        return {j: f[label == j] for j in sorted(set(label.tolist()))}

    def arrive(self, c: Client) -> None:
        f = self.by_class(c.start, c.k)
        h = {j: f_j.sum(0) / c.n for j, f_j in f.items()}
        squares = sum(f_j.pow(2).sum() for f_j in f.values()) / c.n
        self.seen: dict[str, Any] = {
            "h": torch.stack([h[j] if j in h else 0 * f[min(f)][0] for j in range(CLASSES)]),
            "V": (squares - sum(h_j.pow(2).sum() for h_j in h.values())) / c.n,
            "mu": {j: f_j.mean(0) for j, f_j in f.items()},
        }

    def loss(self, c: Client, seen: Pass) -> Tensor:
        loss = super().loss(c, seen)
        if not self.slice["known"].any():
            return loss
        for f, j in zip(seen.h, seen.y.argmax(1).tolist()):
            target = self.slice["z"][j] if self.slice["known"][j] else self.seen["mu"][j]
            loss = loss + self.lam * (f - target).pow(2).mean() / len(seen.h)
        return loss

    def gradient(self, c: Client) -> None:
        rests = head_rests(c, self.head)
        for n, p in c.model.named_parameters():
            if rests[n.startswith("head.")]:
                p.grad = None  # torch's optimisers leave such a weight and its momentum alone

    def leave(self, c: Client) -> Tree:
        f = self.by_class(c.weights, c.k)
        return {"h": self.seen["h"], "V": self.seen["V"], "f": f}

    def server(self, replies: list[Reply], old: Weights) -> None:
        found = [[r.shared["f"].get(j, torch.zeros(0)) for r in replies] for j in range(CLASSES)]
        n = [sum(len(f) for f in fs) for fs in found]
        z = 0 * self.slice["z"].double()
        for j, fs in enumerate(found):
            z[j] = sum((f.sum(0) for f in fs if len(f)), z[j]) / max(1, n[j])
        heads = {name: t.clone() for name, t in self.slice["head"].items()}
        a = best(torch.stack([r.shared["h"] for r in replies]), torch.stack([r.shared["V"] for r in replies]))
        for r, a_k in zip(replies, a):
            for name in heads:
                heads[name][r.k] = sum(x * q.w[name] for x, q in zip(a_k, replies))
        self.slice = {"z": z, "known": torch.tensor([float(m > 0) for m in n]), "head": heads}


def best(h: Tensor, V: Tensor) -> Tensor:
    """[K, K]: every client's shares."""
    return torch.stack([least(h[k] - h, V) for k in range(len(h))])


def least(away: Tensor, V: Tensor) -> Tensor:
    """The shares a with the least sum_j a_j^2 V_j + |sum_j a_j away_j|^2, by trying every set of positive
    ones."""
    K, found = len(V), (math.inf, V)
    for chosen in itertools.chain(*(itertools.combinations(range(K), size) for size in range(1, K + 1))):
        d, one = away[list(chosen)].flatten(1), torch.ones(len(chosen), 1).double()
        equal = torch.cat(
            [torch.cat([d @ d.T + V[list(chosen)].diag(), one], 1), torch.cat([one.T, 0 * one[:1]], 1)]
        )
        right = torch.cat([0 * one, one[:1]])
        a = torch.zeros(K).double()
        a[list(chosen)] = torch.linalg.lstsq(equal, right, driver="gelsd").solution[:-1, 0]
        cost = float((a.pow(2) * V).sum() + torch.einsum("j,j...->...", a, away).pow(2).sum())
        if (a >= -1e-12).all() and abs(float(a.sum()) - 1) < 1e-9 and cost < found[0]:
            found = (cost, a)
    return found[1]


def test_fedpac() -> None:
    agree(Case("cnn", 0.9), FedPAC, lam=2.0, head=0.4)


def test_with_one_or_two_steps_neither_head_nor_body_is_left_out() -> None:
    agree(Case("mlp", batch=8, epochs=1), FedPAC)


def test_heads_are_combined_of_clients_with_like_samples_and_more_certain_ones_count_more() -> None:
    """Clients 0 and 1 have the same means and V = 1, 3, so that shares are 3/4 and 1/4; the third is far from
    both."""
    h = torch.tensor([[[0.0]], [[0.0]], [[100.0]]]).double()
    a = head_shares(h, torch.tensor([1.0, 3.0, 1.0]).double())
    torch.testing.assert_close(a[0], torch.tensor([0.75, 0.25, 0.0]).double(), rtol=0, atol=1e-3)
    torch.testing.assert_close(a.sum(1), torch.ones(3).double())
    draw = torch.Generator().manual_seed(1)
    h, V = torch.rand(4, 3, 2, generator=draw).double(), torch.rand(4, generator=draw).double() / 20
    torch.testing.assert_close(head_shares(h, V), best(h, V), rtol=0, atol=1e-9)
