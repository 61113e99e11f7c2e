"""SVD of changes (Wu et al. 2022, eq. 8 to 10): the least r singular values whose squares hold more than T(t)
of all stand for M.

T(t) = start + (end - start) t / rounds. A matrix that two thin ones would not make smaller arrives as it is.
"""

from dataclasses import replace

import pytest
import torch

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case, model_named
from tests.oracles.values import Reply
from unskew.core import DecodeError
from unskew.methods.svd import SVD as Engine
from unskew.methods.svd import thin


class SVD(FedAvg):
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


def test_svd() -> None:
    agree(Case("cnn", 0.9), SVD, start=0.3, end=0.8)


def test_what_is_sent() -> None:
    """Squares 9, 4 and 1 of 14: one direction holds 64 %, two 93 %, which in a matrix of 3 rows is no
    smaller."""
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
