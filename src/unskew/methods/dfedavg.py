"""DFedAvg (Sun, Li & Wang 2021, arXiv 2104.11375): gossip in a ring of clients, without a common model.

Client k: trains the model that it receives and sends the result z_k back
Server:   keeps every client's last z_k, and sends client k   sum_j W_kj z_j
          W_kj = 1 / (2 d + 1) for k itself and the d clients on each side of it in the ring, else 0
          with fewer than 2 d + 1 clients: 1 / K for all
          the ring follows the clients' numbers; with `moves` a new ring is drawn in every round
Test:     clients are scored by the models they receive
An absent client counts with the model that it sent last, and before that with w_0. A client without samples
returns the model that it received.
Differs from the paper: the coordinator computes what clients would compute from each other's messages, so it
reads every model, and clients that do not trust it gain nothing. Momentum is that of the local optimiser and
starts anew in every round. The paper allows any symmetric W.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le

from unskew.core import Fed, Part, Tensor, Tree, Ups, Weights, key
from unskew.methods.shared.weights import first_models, last_models, row, with_idle_clients


@dataclass(frozen=True)
class DFedAvg(Part):
    """Sends each client the mean of its neighbours' models instead of the mean of all."""

    neighbours: Annotated[
        int, Ge(1), Le(100_000), "how many clients on each side in the ring one averages with"
    ] = 1
    moves: Annotated[bool, "draw another ring in every round; False: it is that of clients' numbers"] = False
    name = "dfedavg"
    family = "merge"
    use_when = "To study a federation of clients that exchange models only with a few neighbours."
    weights_read = "each"
    keeps_at_server = ("z", "u")
    hands_on = "means of the models of a few single clients, its neighbours"

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        z = first_models(w, fed)
        return {"z": z, "u": {n: t.clone() for n, t in z.items()}}

    def server(self, s: Tree, ups: Ups, fed: Fed) -> Tree:
        z = with_idle_clients(last_models(s["z"], ups), lambda k: row(s["u"], k), fed)
        W_KK = self.links(fed.clients, fed.seed, ups.t)
        return {"z": z, "u": {n: torch.einsum("kj,j...->k...", W_KK.to(t), t) for n, t in z.items()}}

    def links(self, K: int, seed: int, t: int) -> Tensor:
        """The mixing matrix W after round t, [K, K]."""
        order_K = torch.randperm(K, generator=key(seed, t, self.name)) if self.moves else torch.arange(K)
        place_K = order_K.argsort()
        steps_KK = (place_K[:, None] - place_K[None, :]) % K
        near_KK = (torch.minimum(steps_KK, K - steps_KK) <= self.neighbours).double()
        return near_KK / near_KK.sum(1, keepdim=True)

    def dispatch(self, w: Weights, s: Tree, k: int, fed: Fed) -> tuple[Weights, Tree]:
        return w | {n: t[k] for n, t in s["u"].items()}, {}
