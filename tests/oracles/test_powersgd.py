"""PowerSGD (Vogels et al., NeurIPS 2019, algorithms 1 and 2) for each client alone, with a round's change in
place of a gradient.

M = (w_k - w) + e_k;    P = orthogonalise(M Q_k);    Q_k <- M^T P;    s_k = P Q_k^T;    e_k <- M - s_k;    w
<- w + sum_k p_k s_k
"""

from dataclasses import replace

import torch
from torch import Tensor

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case
from tests.oracles.values import Client, Reply


class PowerSGD(FedAvg):
    part = "powersgd"
    rank = 2

    def thin(self) -> list[str]:
        shapes = {
            n: (len(self.w[n]), self.w[n].numel() // len(self.w[n]))
            for n in self.learned
            if self.w[n].dim() > 1
        }
        return [n for n, (m, k) in shapes.items() if self.rank * (m + k) < m * k]

    def arrive(self, c: Client) -> None:
        draw = self.given.generator("powersgd", "directions")
        first = {
            n: torch.randn(self.w[n][0].numel(), self.rank, generator=draw).double() for n in self.thin()
        }
        new = {"q": first, "error": {n: torch.zeros_like(self.w[n]) for n in first}}
        self.private.setdefault(c.k, new)

    def train(self, k: int) -> Reply:
        reply, mine = super().train(k), self.private[k]
        arrived, q, error = dict(reply.w), {}, {}
        for n in self.thin():
            m = (reply.w[n] - self.w[n] + mine["error"][n]).reshape(len(self.w[n]), -1)
            p = orthonormal(m @ mine["q"][n])
            q[n] = m.T @ p
            s = (p @ q[n].T).reshape(self.w[n].shape)
            arrived[n], error[n] = self.w[n] + s, m.reshape(s.shape) - s
        self.private[k] = {"q": q, "error": error}
        return replace(reply, w=arrived)


def orthonormal(columns: Tensor) -> Tensor:
    """By Gram and Schmidt, with the signs of LAPACK's QR (Householder), in which every R_ii has the sign of
    -x_i."""
    basis: list[Tensor] = []
    for j in range(columns.shape[1]):
        x = columns[:, j].clone()
        for b in basis:
            x -= (b @ x) * b
        basis.append(x / x.norm())
    found = torch.stack(basis, 1)
    return found * torch.linalg.qr(columns).R.diagonal().sign()


def test_powersgd() -> None:
    agree(Case("cnn", 0.9), PowerSGD, atol=2e-5, rank=1)


def test_two_directions() -> None:
    agree(Case(), PowerSGD, atol=2e-5)
