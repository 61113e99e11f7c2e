"""SCAFFOLD (Karimireddy et al., ICML 2020, algorithm 1, option II).

Client: g <- g - c_k + c;   c_k' = c_k - c + (w_t - w_S) / (a lr)    S local steps, a = S for plain SGD
Server: c <- c + |cohort|/K mean_k (c_k' - c_k)
With momentum rho, a = (S - rho (1 - rho^S) / (1 - rho)) / (1 - rho), the steps' accumulated weight.
Differs from the paper: nothing; `weighted=True` weighs clients by size instead of equally.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from unskew.core.client import Client, Fed
from unskew.core.part import Part, Share
from unskew.core.replies import Ups
from unskew.core.trees import Tree, Weights


@dataclass(frozen=True)
class Scaffold(Part):
    """weighted: merge clients by size (default: equally, as the paper does)."""

    weighted: bool = False
    name: ClassVar[str] = "scaffold"

    @property
    def weighting(self) -> Literal["size", "equal"]:
        return "size" if self.weighted else "equal"

    def refuse(self, fed: Fed) -> str | None:
        if fed.optimiser != "sgd":
            return "its control variates assume SGD; set optimiser=sgd"
        return None if fed.shared else "clients keep every weight, so none is to be steered"

    def shares(self, fed: Fed) -> dict[str, Share]:
        w = fed.net.weights()
        return {f"delta/{n}": Share(tuple(w[n].shape), what="change of the control variate") for n in fed.shared}

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        return {"c": {n: torch.zeros_like(w[n]) for n in fed.shared}}

    def client_init(self, w: Weights, fed: Fed) -> Tree:
        return {"c": {n: torch.zeros_like(w[n]) for n in fed.shared}}

    def grad(self, g: Weights, w: Weights, c: Client) -> Weights:
        return g | {n: g[n] - c_k + c.down["c"][n] for n, c_k in c.mine["c"].items()}

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        rho = c.fed.momentum
        a = (c.steps - rho * (1 - rho**c.steps) / (1 - rho)) / (1 - rho)
        mine = {n: c_k - c.down["c"][n] + (c.start[n] - w[n]) / (a * c.lr) for n, c_k in c.mine["c"].items()}
        return {"delta": {n: mine[n] - c_k for n, c_k in c.mine["c"].items()}}, {"c": mine}

    def server(self, s: Tree, ups: Ups, fed: Fed) -> Tree:
        share_of_clients = len(ups) / fed.clients
        return {"c": {n: c + share_of_clients * ups["delta"][n].mean(0) for n, c in s["c"].items()}}
