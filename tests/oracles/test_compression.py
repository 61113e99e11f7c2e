"""Oracles of methods that encode the weights that clients send."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.oracles.agreement import Encoded, agreement_test, checked
from tests.oracles.plain import Case, Client, FedAvg, Reply, Weights, model_named
from unskew.core import DecodeError
from unskew.methods.svd import SVD as Engine
from unskew.methods.svd import thin


@checked(Case("cnn", 0.9), share=0.1)
# Without memory
@checked(Case(), memory=False)
class TopK(Encoded):
    """Top-k with memory (Stich et al., NeurIPS 2018, algorithm 1), with a round's change in place of a gradient's
    step.

    v = (w_k - w) + e_k;    s_k = v where |v| is among the k largest, else 0;    e_k <- v - s_k;    w <- w + sum_k
    p_k s_k
    """

    part = "topk"
    share = 0.05

    def read(self, k: int, v: Tensor) -> Tensor:
        least = sorted(v.abs().tolist(), reverse=True)[: max(1, round(self.share * len(v)))][-1]
        return torch.where(v.abs() >= least, v, 0.0)


@checked(Case(), share=0.1)
# Randomk without memory
@checked(Case(), memory=False)
class RandomK(Encoded):
    """Random-k with memory (Stich et al., NeurIPS 2018, algorithm 1), with a round's change in place of a
    gradient's step.

        v = (w_k - w) + e_k;    s_k = v at k random places, else 0;    e_k <- v - s_k;    w <- w + sum_k p_k s_k
    Without memory s_k is D / k times that, so that its mean over places is v.
    """

    part = "randomk"
    share = 0.05

    def read(self, k: int, v: Tensor) -> Tensor:
        count = max(1, round(self.share * len(v)))
        sent = torch.zeros_like(v)
        for place in torch.randperm(len(v), generator=self.draws(k, "indices"))[:count].tolist():
            sent[place] = v[place] * (1 if self.memory else len(v) / count)
        return sent


@checked(Case("cnn", 0.9), bucket=100)
# Fedpaq
@checked(Case(), bits=8, bucket=0, norm="l2")
class QSGD(Encoded):
    """QSGD (Alistarh et al., NeurIPS 2017, section 3.1), with a round's change in place of a gradient, as FedPAQ
    has it.

    Q(v_i) = |v| sign(v_i) xi_i;    with l <= s |v_i| / |v| < l + 1:  xi_i = (l + 1) / s with probability s |v_i|
    / |v| - l, else l / s;    w <- w + sum_k p_k Q(w_k - w);    |v| the norm of i's bucket
    """

    part = "qsgd"
    memory = False
    bits = 4
    bucket = 512
    norm = "max"

    def read(self, k: int, v: Tensor) -> Tensor:
        s, size = 2 ** (self.bits - 1) - 1, self.bucket or len(v)
        u, rounded = torch.rand(len(v), generator=self.draws(k, "rounding")), torch.zeros_like(v)
        for i, x in enumerate(v.tolist()):
            own = v[i // size * size : (i // size + 1) * size]
            norm = float(own.abs().max() if self.norm == "max" else own.pow(2).sum().sqrt())
            level = math.floor(s * abs(x) / norm)
            level += float(u[i]) >= 1 - (s * abs(x) / norm - level)
            rounded[i] = math.copysign(norm * level / s, x)
        return rounded


@checked(Case("cnn", 0.9), lr=0.002)
class SignSGD(Encoded):
    """signSGD with majority vote (Bernstein et al., ICLR 2019, algorithm 1), with a round's change in place of a
    gradient.

        w <- w + lr sign(sum_k sign(w_k - w));    where a client's change is 0, a coin is its vote
    Running statistics of batch normalisation take the plain mean.
    """

    part = "signsgd"
    weighting = "equal"
    memory = False
    lr = 0.01

    def read(self, k: int, v: Tensor) -> Tensor:
        coins = torch.randint(2, v.shape, generator=self.draws(k, "coins"))
        return torch.where(v == 0, 2.0 * coins - 1, v.sign())

    def merge(self, replies: list[Reply]) -> Weights:
        votes = {n: sum(r.w[n] - self.w[n] for r in replies) for n in self.learned}
        moved = {n: self.w[n] + self.lr * torch.as_tensor(v).round().sign() for n, v in votes.items()}
        return self.weighted_mean(replies) | moved


@checked(Case())
class EFSign(Encoded):
    """EF-signSGD (Karimireddy et al., ICML 2019, algorithm 1, by layers), with a round's change in place of a
    gradient's step.

    p = (w_k - w) + e_k;    s_k = |p|_1 / d sign(p) for each tensor of d numbers;    e_k <- p - s_k;    w <- w +
    sum_k p_k s_k
    """

    part = "efsign"

    def read(self, k: int, v: Tensor) -> Tensor:
        scaled = [p.abs().sum() / p.numel() * torch.where(p < 0, -1.0, 1.0) for p in self.parts(v).values()]
        return torch.cat([t.flatten() for t in scaled])


@checked(Case("cnn", 0.9), atol=2e-5, rank=1)
# Two directions
@checked(Case(), atol=2e-5)
class PowerSGD(FedAvg):
    """PowerSGD (Vogels et al., NeurIPS 2019, algorithms 1 and 2) for each client alone, with a round's change in
    place of a gradient.

    M = (w_k - w) + e_k;    P = orthogonalise(M Q_k);    Q_k <- M^T P;    s_k = P Q_k^T;    e_k <- M - s_k;    w
    <- w + sum_k p_k s_k
    """

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
    """By Gram and Schmidt, with the signs of LAPACK's QR (Householder), where R_ii has the sign of -x_i."""
    basis: list[Tensor] = []
    for j in range(columns.shape[1]):
        x = columns[:, j].clone()
        for b in basis:
            x -= (b @ x) * b
        basis.append(x / x.norm())
    found = torch.stack(basis, 1)
    return found * torch.linalg.qr(columns).R.diagonal().sign()


@checked(Case("cnn", 0.9), start=0.3, end=0.8)
class SVD(FedAvg):
    """SVD of changes (Wu et al. 2022, eq. 8 to 10): the least r singular values whose squares hold more than T(t)
    of all stand for M.

    T(t) = start + (end - start) t / rounds. A matrix that two thin ones would not make smaller arrives as it is.
    """

    part = "svd"
    start = 0.95
    end = 0.98

    def train(self, k: int) -> Reply:
        reply = super().train(k)
        T = self.start + (self.end - self.start) * self.t / self.case.rounds
        arrived = dict(reply.w)
        for n in self.learned:
            if self.w[n].dim() > 1:
                M = (reply.w[n] - self.w[n]).flatten(1)
                arrived[n] = self.w[n] + self.read(M, T).reshape(self.w[n].shape)
        return replace(reply, w=arrived)

    def read(self, M: torch.Tensor, T: float) -> torch.Tensor:
        U, s, V = torch.linalg.svd(M, full_matrices=False)
        r = next((r for r in range(1, len(s)) if (s[:r] ** 2).sum() > T * (s**2).sum()), len(s))
        return U[:, :r] @ torch.diag(s[:r]) @ V[:r] if r * sum(M.shape) < M.numel() else M


def test_what_is_sent() -> None:
    """Squares 9, 4 and 1 of 14: one direction holds 64 %, two 93 %, no smaller in a matrix of 3 rows."""
    M = torch.zeros(3, 40)
    M[0, 0], M[1, 1], M[2, 2] = 3.0, 2.0, 1.0
    assert [tuple(t.shape) for t in thin(M, 0.6)] == [(1, 3), (1, 40)]
    assert [tuple(t.shape) for t in thin(M, 0.9)] == [(2, 3), (2, 40)]
    assert [tuple(t.shape) for t in thin(M, 1.0)] == [(0, 3), (3, 40)]
    assert [tuple(t.shape) for t in thin(torch.zeros(9, 9), 0.9)] == [(0, 9), (9, 9)]
    u, v = thin(M, 0.9)
    torch.testing.assert_close(u.T @ v, M * (M > 1))


def test_numbers_of_directions_that_differ_are_refused() -> None:
    w = dict(model_named("mlp").named_parameters())
    tree = {"u": {"head.weight": torch.ones(1, 4)}, "v": {"head.weight": torch.ones(2, 7)}}
    with pytest.raises(DecodeError, match=r"'head\.weight' has 1 directions and the change along 2"):
        Engine().decode(tree, w, None, None)  # type: ignore[arg-type]
    with pytest.raises(DecodeError, match="0 directions and the change along 2"):
        Engine().decode(tree | {"u": {"head.weight": torch.ones(0, 4)}}, w, None, None)  # type: ignore[arg-type]


test_agreement = agreement_test(globals())
