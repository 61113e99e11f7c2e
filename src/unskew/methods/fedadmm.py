"""FedADMM (Gong, Li & Freris, ICDE 2022, arXiv 2204.03529): multipliers align the clients' models.

Client: g <- g + y_k + rho (w - w_t),   then  y_k' = y_k + rho (w_S - w_t)
        S local steps; y_k begins at 0
        sends w_t + d_k,   d_k = (w_S - w_k) + (y_k' - y_k) / rho,   and keeps w_k' = w_S
Server: w_{t+1} = w_t + lr mean_k d_k
By default lr is the share of the clients that answered, for which w remains the mean of w_k + y_k / rho over
all clients. With lr = 1 a client that returns adds the model's moves during its absence once more, and
training may diverge. Statistics of batch normalisation take the plain mean.
Differs from the paper: a client's w_k begins as the model it first receives, not as w_0. The official code
takes w_t for w_k throughout (`own=False`), so that a round moves the model twice as far as its clients moved;
its lr is 1, and from round 61 on 0.5. It draws a client's number of epochs at random in every round; ours is
the run's setting.
Defaults: rho is that of the official program.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Le

from unskew.core import Client, Fed, Part, Tree, Ups, Weights
from unskew.merge.mean import weighted_mean


@dataclass(frozen=True)
class FedADMM(Part):
    """Pulls the models of clients and server together by multipliers, one set at every client."""

    rho: Annotated[
        float, Ge(1e-9), Le(1_000_000), "strength of the pull, and step size of the multipliers"
    ] = 0.01
    lr: Annotated[
        float,
        Ge(0),
        Le(1000),
        "the server's step; 0: the share of the clients that answered, and 1 with own=False",
    ] = 0.0
    own: Annotated[
        bool, "send the change from the client's own last model; False: from the one it received"
    ] = True
    name = "fedadmm"
    family = "steps"
    against = ("labels",)
    use_when = (
        "Clients drift over many local steps and differ in their number of steps; they come back often."
    )
    merges = True
    weighting = "equal"

    def client_init(self, w: Weights, fed: Fed) -> Tree:
        own = {"own": {n: w[n].clone() for n in fed.shared}} if self.own else {}
        return {"y": {n: torch.zeros_like(w[n]) for n in fed.shared}, **own}

    def grad(self, g: Weights, w: Weights, c: Client) -> Weights:
        return g | {n: g[n] + y + self.rho * (w[n] - c.start[n]) for n, y in c.mine["y"].items()}

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        own = {"own": {n: w[n].clone() for n in c.fed.shared}} if self.own else {}
        return {}, {"y": {n: y + self.rho * (w[n] - c.start[n]) for n, y in c.mine["y"].items()}, **own}

    def sends(self, w: Weights, c: Client) -> Weights:
        """The sent weights w_t + d_k, which equal 2 w_S - w_k because (y_k' - y_k) / rho is w_S - w_t."""
        last = c.mine["own"] if self.own else c.start
        return w | {n: 2 * w[n] - last[n] for n in c.fed.shared}

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        mean, answered = weighted_mean(w, ups), len(ups) / np.count_nonzero(fed.sizes)
        lr = self.lr or (float(answered) if self.own else 1.0)
        return mean | {n: w[n] + lr * (mean[n] - w[n]) for n in fed.shared}, s
