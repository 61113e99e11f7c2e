"""SVD (FedKD's compression: Wu, Wu, Lyu, Huang & Xie, Nature Communications 2022, arXiv 2108.13323).

Client: M = w_S - w_t, a matrix [m, n] of each weight of two or more axes
        M = U diag(s) V,   s_1 >= s_2 >= ...
        sends U_r diag(s_r) and V_r, the first r columns and rows
        r: the least with  sum_{i <= r} s_i^2 > T sum_i s_i^2
        T rises linearly from `start` to `end` over the rounds
        vectors, and matrices with r (m + n) >= m n, are sent uncompressed
Server: uses w_t + U_r diag(s_r) V_r as the client's weights
Differs from the paper: the server's messages are sent uncompressed. Public code sends nothing of a matrix if
all its directions but one do not reach T; PFLlib decomposes the weights instead of their changes, and kernels
separately for each position of a window.
Defaults: those of the authors' program.
"""

from dataclasses import dataclass
from typing import Annotated

import torch

from unskew.core import Client, DecodeError, Fed, Keys, Part, Share, Tensor, Tree, Weights
from unskew.formats.setting_ranges import PositiveFraction


@dataclass(frozen=True)
class SVD(Part):
    """Sends the change of every matrix by as many of its main directions as hold most of it."""

    start: Annotated[PositiveFraction, "share of a change's energy that is sent in the first round"] = 0.95
    end: Annotated[PositiveFraction, "share of a change's energy that is sent in the last round"] = 0.98
    name = "svd"
    family = "compression"
    use_when = (
        "Models have large matrices and links are slow, and the loss by compression matters more than the"
        " number of bytes."
    )
    untuned = {"start": "it decides how much leaves a client", "end": "it decides how much leaves a client"}

    def has_schedule(self) -> bool:
        return True

    def encoded(self, fed: Fed) -> dict[str, Share]:
        w, shares = fed.net.weights(), dict[str, Share]()
        for n in fed.shared:
            if w[n].dim() < 2:
                shares[f"whole/{n}"] = self._share(tuple(w[n].shape), 0, "change of vectors")
                continue
            m, k = w[n].flatten(1).shape
            rows = (m * k - 1) // (m + k)
            shares[f"u/{n}"] = self._share((None, m), rows, "directions of a change")
            shares[f"v/{n}"] = self._share((None, k), max(rows, m), "the change along them, or all of it")
        return shares

    def _share(self, shape: tuple[int | None, ...], rows: int, what: str) -> Share:
        return Share(shape, reads="each", rows=rows, what=what, kind="weights", samples="client")

    def encode(self, change: Weights, c: Client, keys: Keys) -> tuple[Tree, Tree]:
        energy = self.start + (self.end - self.start) * c.t / c.fed.rounds
        tree: Tree = {}
        for n, t in change.items():
            if t.dim() < 2:
                tree.setdefault("whole", {})[n] = t
                continue
            u, v = thin(t.flatten(1), energy)
            tree.setdefault("u", {})[n], tree.setdefault("v", {})[n] = u, v
        return tree, {}

    def decode(self, tree: Tree, w: Weights, fed: Fed, keys: Keys) -> Weights:
        change = dict(tree.get("whole", {}))
        for n, v in tree.get("v", {}).items():
            u, m = tree["u"][n], len(w[n])
            if len(v) != (len(u) or m):
                raise DecodeError(f"'{n}' has {len(u)} directions and the change along {len(v)}")
            change[n] = (u.T @ v if len(u) else v).reshape(w[n].shape)
        return change


def thin(M: Tensor, energy: float) -> tuple[Tensor, Tensor]:
    """Two matrices [r, m] (transposed) and [r, n] with a product that is M up to the allowed loss; ([0, m],
    M) if they would not be smaller."""
    U, s, V = torch.linalg.svd(M, full_matrices=False)
    squares = s.double().pow(2)
    r = min(int((squares.cumsum(0) <= energy * squares.sum()).sum()) + 1, len(s))
    if r * sum(M.shape) >= M.numel():
        return M.new_zeros((0, len(M))), M
    return (U[:, :r] * s[:r]).T.contiguous(), V[:r].contiguous()
