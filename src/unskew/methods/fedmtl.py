"""FedMTL (Smith, Chiang, Sanjabi & Talwalkar, NeurIPS 2017, arXiv 1705.10467): a model for each client.

All clients together descend  sum_k F_k(w_k) + lam sum_kj O_kj <w_k, w_j>,  with a relation O between clients.
Client: from its own w_k descends  F_k(w_k) + lam (O_kk |w_k|^2 + 2 <w_k, u_k>)
        u_k: the received sum over j != k of O_kj w_j
        a client without samples has the w_k that minimises its terms, -u_k / O_kk
Server: keeps every client's last w_k, then sets O according to `relation`:
        mean:    O = I - 1/K, for which the sum is that of |w_k - mean_j w_j|^2
        learned: S = (W'W + ridge mean_k |w_k|^2 I)^(1/2),   O = trace(S) S^-1     W: columns w_k
Test:   clients are scored by their own w_k; absent clients count with their last reply, and before
        that with w_0
Differs from the paper: MOCHA solves the dual of convex losses approximately; ours takes local steps on the
primal, as comparisons with deep models do, and W consists of the clients' last replies. Public code (PFLlib)
squares the numbers of I - 1/K, sends each client all models and scales the term by the model's size.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from unskew.core import Batch, Client, Fed, Out, Part, Tensor, Tree, Ups, Weights
from unskew.formats.arguments import With
from unskew.formats.setting_ranges import NonNegative, Rate
from unskew.methods.shared.weights import first_models, last_models, row, with_idle_clients


@dataclass(frozen=True)
class FedMTL(Part):
    """Trains a model for each client and couples all models by a relation between clients."""

    lam: Annotated[NonNegative, "how strongly models are tied; 0: clients train alone"] = 0.1
    relation: Annotated[
        Literal["mean", "learned"],
        "tie each to the mean of all, or by how alike models are, negative likeness included",
    ] = "mean"
    ridge: Annotated[
        Rate, With("relation", "learned"), "what keeps the learned relation from growing without bound"
    ] = 0.01
    name = "fedmtl"
    family = "personalised"
    against = ("labels", "features")
    use_when = "Few clients that come back often, with related but different tasks; each has its own model."
    weights_read = "each"
    keeps_at_server = ("w", "u", "o")
    hands_on = "sums of the models of single clients, weighed by how they are related to its own"

    def refuse(self, fed: Fed) -> str | None:
        return None if fed.shared else "it ties the weights that clients send, and they keep every weight"

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        return self.slice_of(first_models(w, fed), fed)

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor:
        terms = [(w[n] * (c.down["o"] * w[n] + 2 * c.down["u"][n])).sum() for n in c.fed.shared]
        return self.lam * torch.stack(terms).sum()

    def server(self, s: Tree, ups: Ups, fed: Fed) -> Tree:
        w = last_models(s["w"], ups)
        at_rest = {n: -u / per_client(s["o"].clamp(min=1e-12), u) for n, u in s["u"].items()}
        return self.slice_of(with_idle_clients(w, lambda k: row(w | at_rest, k), fed), fed)

    def slice_of(self, w: Weights, fed: Fed) -> Tree:
        """The server's slice from all clients' models, [K, ...]."""
        o_KK = self.relation_matrix(torch.cat([w[n].reshape(len(w[n]), -1) for n in fed.shared], 1))
        offdiagonal_KK = o_KK - torch.diag(o_KK.diagonal())
        u = {n: torch.einsum("kj,j...->k...", offdiagonal_KK.to(w[n]), w[n]) for n in fed.shared}
        return {"w": w, "u": u, "o": o_KK.diagonal().to(w[fed.shared[0]])}

    def relation_matrix(self, w_KN: Tensor) -> Tensor:
        """The relation O, float64 [K, K]."""
        K = len(w_KN)
        I_KK = torch.eye(K, dtype=torch.float64, device=w_KN.device)
        if self.relation == "mean":
            return I_KK - 1 / K
        WW_KK = w_KN.double() @ w_KN.double().T
        ridge = (self.ridge * WW_KK.diagonal().mean()).clamp(min=1e-12)
        values_K, vectors_KK = torch.linalg.eigh((WW_KK + ridge * I_KK).cpu())
        roots_K = values_K.clamp(min=1e-12).sqrt()
        return ((vectors_KK * (roots_K.sum() / roots_K)) @ vectors_KK.T).to(I_KK)

    def dispatch(self, w: Weights, s: Tree, k: int, fed: Fed) -> tuple[Weights, Tree]:
        return w | {n: t[k] for n, t in s["w"].items()}, {
            "u": {n: t[k] for n, t in s["u"].items()},
            "o": s["o"][k],
        }


def per_client(values_K: Tensor, like: Tensor) -> Tensor:
    """Numbers of clients reshaped to [K, 1, ...], with as many axes as `like`."""
    return values_K.to(like).reshape(-1, *[1] * (like.dim() - 1))
