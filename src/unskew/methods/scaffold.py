"""SCAFFOLD (Karimireddy et al., ICML 2020, algorithm 1, option II).

Client k: g <- g - c_k + c;   c_k' = c_k - c + (w_t - w_S) / (a lr)
          S local steps; a = S for plain SGD
Server:   c <- c + |cohort|/K mean_k (c_k' - c_k)      K: all clients
The merge weighs clients equally. In the hooks the server's control variate c is `c.down["c"]`, the client's
c_k is `c.mine["c"]`, and a is `c.pull`. With momentum rho, a = (S - rho (1 - rho^S) / (1 - rho)) / (1 - rho),
the sum of the weights of all steps' gradients. If the learning rate has fallen to 0, c_k does not change.
Differs from the paper: the server's step size eta_g is fixed at 1.
"""

from dataclasses import dataclass

import torch

from unskew.core import Client, Fed, Part, Share, Tree, Ups, Weights
from unskew.methods.shared.weights import HEAD_FIRST_PARTS


@dataclass(frozen=True)
class Scaffold(Part):
    """Corrects every gradient by the control variates of client and server."""

    name = "scaffold"
    family = "steps"
    against = ("labels",)
    use_when = (
        "Clients drift over many local steps; they are few and come back often, because control variates"
        " must be fresh."
    )
    weighting = "equal"
    by_steps = "client"
    clashes = dict.fromkeys(
        HEAD_FIRST_PARTS,
        "its control variates divide a change by all local steps, and with the other the body rests in some",
    )

    def refuse(self, fed: Fed) -> str | None:
        return None if fed.optimiser == "sgd" else "its control variates assume SGD; set optimiser=sgd"

    def shares(self, fed: Fed) -> dict[str, Share]:
        w = fed.net.weights()
        what = "change of the control variate"
        return {
            f"delta/{n}": Share(tuple(w[n].shape), what=what, kind="weights", samples="client")
            for n in fed.shared
        }

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        return {"c": {n: torch.zeros_like(w[n]) for n in fed.shared}}

    client_init = server_init  # both begin at zero

    def grad(self, g: Weights, w: Weights, c: Client) -> Weights:
        return g | {n: g[n] - c_k + c.down["c"][n] for n, c_k in c.mine["c"].items()}

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        rate = c.pull * c.lr
        moves = (
            rate > 0
        )  # else the learning rate is 0, or too small for float32, and w_S says nothing of the gradients
        seen = {n: c_k - c.down["c"][n] + (c.start[n] - w[n]) / rate for n, c_k in c.mine["c"].items()}
        new = {n: torch.where(moves, seen[n], c_k) for n, c_k in c.mine["c"].items()}
        return {"delta": {n: new[n] - c_k for n, c_k in c.mine["c"].items()}}, {"c": new}

    def server(self, s: Tree, ups: Ups, fed: Fed) -> Tree:
        share, delta = len(ups) / fed.clients, ups["delta"]
        return {"c": {n: c_n + share * delta[n].mean(0) for n, c_n in s["c"].items()}}
