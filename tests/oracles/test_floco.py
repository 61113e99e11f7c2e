"""FLOCO (Grinwald et al., NeurIPS 2024): CE with the head sum_m a_m theta_m, a anywhere on the simplex, later
near a_k.

a_k: principal components of how clients' endpoints moved, put on the simplex where they are least crowded.
"""

from typing import Any

import torch
from torch import Tensor

from tests.oracles.agreement import agree
from tests.oracles.personal import Dispatched
from tests.oracles.plain import cross_entropy
from tests.oracles.tiny import Case, Law, Weights
from tests.oracles.values import Client, Pass, Reply
from unskew.methods.floco import nearest, points

HEAD = ("head.bias", "head.weight")


class Floco(Dispatched):
    part = "floco"
    endpoints = 10
    rho = 0.1
    tau = 0.0

    def flat(self, w: Weights) -> Tensor:
        return torch.cat([w[n].flatten() for n in sorted(w) if n.startswith("floco.")])

    def begin(self) -> None:
        K, M = self.clients, self.endpoints
        at = self.flat(self.w)
        zeros = {"moves": torch.zeros(K, len(at)).double(), "known": torch.zeros(K), "on": torch.zeros(K)}
        self.slice = {"at": at, "a": torch.full((K, M), 1 / M).double(), **zeros}

    def theta(self, w: Any, a: Tensor) -> Weights:
        return {n: sum(a[m] * w[f"floco.{m}.{n}"] for m in range(self.endpoints)) for n in HEAD}  # type: ignore[misc]

    def sent_to(self, k: int) -> Weights:
        return self.w | self.theta(self.w, self.slice["a"][k])

    def loss(self, c: Client, seen: Pass) -> Tensor:
        u = self.noise(c, "u", Law("uniform", shape=(self.endpoints + 1,), per_sample=False))[c.step].double()
        if self.slice["on"][c.k]:
            v = 2 * u[1:] - 1
            a = self.slice["a"][c.k] + self.rho * u[0] * v / v.abs().sum()
        else:
            a = torch.log(1 / (1 - u[1:])) / torch.log(1 / (1 - u[1:])).sum()
        head = self.theta(c.extra, a)
        return cross_entropy(seen.h @ head["head.weight"].T + head["head.bias"], seen.y)

    def gradient(self, c: Client) -> None:
        for n in HEAD:
            c.parameters[n].grad = None

    def server(self, replies: list[Reply], old: Weights) -> None:
        self.w |= self.theta(self.w, torch.full((self.endpoints,), 1 / self.endpoints).double())
        for r in replies:
            self.slice["moves"][r.k] = self.flat(r.w) - self.flat(old)
            self.slice["known"][r.k] = 1
        self.slice["at"] = self.flat(self.w)
        if self.t == self.tau:
            self.slice["on"] = self.slice["known"].clone()
            self.project()

    def project(self) -> None:
        who = self.slice["known"].nonzero().flatten().tolist()
        moves = self.slice["moves"][who]
        u, s, _ = torch.linalg.svd(moves - moves.mean(0), full_matrices=False)
        kappa = (u * s)[:, : self.endpoints]
        for column in kappa.T:
            column *= column[column.abs().argmax()].sign()
        z = torch.linspace(1e-4, 1, 1000)[:, None, None].double()
        tried = on_simplex(kappa.expand(1000, -1, -1), z) / z
        gaps = (tried[:, :, None] - tried[:, None]).norm(dim=3).clamp(min=1e-4)
        pairs = torch.triu(torch.ones(len(who), len(who)), 1)
        self.slice["a"][who] = tried[(gaps.pow(-2) * pairs).sum((1, 2)).argmin()]


def on_simplex(rows: Tensor, z: Tensor) -> Tensor:
    """max(row - b, 0) with the b at which the sum is z, by halving."""
    low, high = rows.amin(-1, keepdim=True) - z, rows.amax(-1, keepdim=True) + 0 * z
    for _ in range(60):
        b = (low + high) / 2
        more = (rows - b).clamp(min=0).sum(-1, keepdim=True) > z
        low, high = torch.where(more, b, low), torch.where(more, high, b)
    return (rows - low).clamp(min=0)


def test_floco() -> None:
    agree(Case("cnn", 0.9), Floco, endpoints=3, tau=1.0, rho=0.2)


def test_the_nearest_point_of_a_simplex() -> None:
    torch.testing.assert_close(
        nearest(torch.tensor([[0.5, 0.1, -2.0]]), 1.0), torch.tensor([[0.7, 0.3, 0.0]])
    )


def test_points_do_not_depend_on_the_signs_of_principal_components(monkeypatch) -> None:
    """Libraries choose them at will; here the number of each component that is largest in size is
    positive."""
    moves_KN = torch.randn(5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    ours, eigh = points(moves_KN, 3), torch.linalg.eigh

    def turned(a: Tensor) -> tuple[Tensor, Tensor]:
        values, vectors = eigh(a)
        return values, -vectors

    monkeypatch.setattr(torch.linalg, "eigh", turned)
    torch.testing.assert_close(points(moves_KN, 3), ours)
