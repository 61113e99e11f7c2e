"""PowerSGD (Vogels, Karimireddy & Jaggi, NeurIPS 2019, arXiv 1905.13727): low-rank changes of matrices.

Client: M = (w_S - w_t) + e_k, a matrix [m, n] of each weight of two or more axes
        P = orthonormal(M Q_k),   Q_k' = M^T P
        sends P [m, r] and Q_k' [n, r];   e_k' = M - P Q_k'^T
        e_k begins at 0, Q_k with normal numbers, equal for all clients
Server: uses w_t + P Q_k'^T as the client's weights
Biases, other vectors, and matrices that two thin ones would not make smaller are sent uncompressed.
Differs from the paper: M is a round's change after local steps, and each client sends its own P; the paper
averages P over all clients before they compute Q, which takes a second exchange in every round. The merged
change may therefore have rank K r. P is made orthonormal by QR, not by Gram-Schmidt. Statistics of batch
normalisation and the Shares of other Parts are sent uncompressed, and so are the server's messages.
Defaults: the rank with which the authors study warm starts; they compare several.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le

from unskew.core import Client, Fed, Keys, Part, Share, Tree, Weights, key


@dataclass(frozen=True)
class PowerSGD(Part):
    """Sends the change of every matrix in its few largest directions, and adds the remainder to later
    rounds."""

    rank: Annotated[int, Ge(1), Le(1024), "r, columns of the two matrices that stand for a change"] = 2
    name = "powersgd"
    family = "compression"
    use_when = "Models have large matrices, links are slow, and clients come back often."

    def client_init(self, w: Weights, fed: Fed) -> Tree:
        names, generator = self._thin(w, fed), key(fed.seed, self.name, "directions")
        normal = {n: torch.randn(w[n][0].numel(), self.rank, generator=generator) for n in names}
        return {
            "q": {n: t.to(w[n].device) for n, t in normal.items()},
            "error": {n: torch.zeros_like(w[n]) for n in names},
        }  # fmt: skip

    def encoded(self, fed: Fed) -> dict[str, Share]:
        w = fed.net.weights()
        thin = self._thin(w, fed)
        shapes = {f"p/{n}": (len(w[n]), self.rank) for n in thin} | {
            f"q/{n}": (w[n][0].numel(), self.rank) for n in thin
        }
        shapes |= {f"whole/{n}": tuple(w[n].shape) for n in fed.shared if n not in thin}
        what = {"p": "directions, orthonormal", "q": "change along them", "whole": "change of vectors"}
        return {
            path: Share(
                shape, reads="each", what=what[path.partition("/")[0]], kind="weights", samples="client"
            )
            for path, shape in shapes.items()
        }

    def encode(self, change: Weights, c: Client, keys: Keys) -> tuple[Tree, Tree]:
        p, q, error = Weights(), Weights(), Weights()
        for n, before in c.mine["q"].items():
            m = (change[n] + c.mine["error"][n]).flatten(1)
            p[n] = torch.linalg.qr(m @ before).Q
            q[n] = m.T @ p[n]
            error[n] = (m - p[n] @ q[n].T).reshape(change[n].shape)
        whole = {n: t for n, t in change.items() if n not in p}
        tree = {branch: ws for branch, ws in (("p", p), ("q", q), ("whole", whole)) if ws}
        return tree, {"q": q, "error": error} if p else {}

    def decode(self, tree: Tree, w: Weights, fed: Fed, keys: Keys) -> Weights:
        low = {n: (p @ tree["q"][n].T).reshape(w[n].shape) for n, p in tree.get("p", {}).items()}
        return low | tree.get("whole", {})

    def _thin(self, w: Weights, fed: Fed) -> list[str]:
        """The weights with a change that two thin matrices make smaller."""
        return [n for n in fed.shared if w[n].dim() > 1 and self._size(w[n].shape) < w[n].numel()]

    def _size(self, shape: torch.Size) -> int:
        return self.rank * (shape[0] + shape[1:].numel())
