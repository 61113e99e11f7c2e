"""APPLE (Luo & Wu, IJCAI 2022, arXiv 2110.08394): clients learn how to mix the core models of all clients.

Client: receives the core models w_j of all clients and n_j / n; its own model is
        W_k = sum_j p_kj w_j,   p_kj = n_j / n + q_kj,   q_kj begins at 0
        at a step, with g = grad CE(W_k):   w_k <- w_k - lr p_kk g
        q_kj <- q_kj - rate (<g, w_j> + mu lam q_kj)
        lam = (cos(pi r / R) + 1) / 2 while r < R, else 0;   r: rounds before this one, R = until T
        sends w_k and keeps q_k
Test:   a client's own score is that of W_k with the received core models; other scores are those of
        w_k
Differs from the paper: a step of w_k is K times as long, as in PFLlib, because p_kk is about 1 / K;
`scaled=False` turns this off. PFLlib also takes the mean over weights for <g, w_j>, and sends W_k. w_k and
q_k take their steps at the same time, with the optimiser's momentum and weight decay, which pulls shares to
n_j / n instead of 0. A client receives all core models; in the paper it receives as many as it can take.
Defaults: those of the authors' program. Its mu of 0.1 multiplies the square of q, ours half of it; there the
pull falls exponentially, unless a cosine is asked for.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le

from unskew.core import Client, Fed, Part, Tensor, Tree, Ups, Weights
from unskew.formats.setting_ranges import NonNegative, PositiveFraction
from unskew.methods.shared.weights import first_models, last_models

SMALLEST = 1e-30
"""Below this learning rate shares do not move: the gradient that moves them by `rate` exceeds float32."""


@dataclass(frozen=True)
class APPLE(Part):
    """Sends all core models to every client, which learns their shares in its own model."""

    rate: Annotated[float, Ge(0), Le(1000), "learning rate of the shares"] = 0.001
    mu: Annotated[NonNegative, "pull of shares towards clients' parts of all samples, at first"] = 0.2
    until: Annotated[PositiveFraction, "part of the rounds in which that pull fades"] = 0.1
    scaled: Annotated[bool, "steps of core models as many times as long as there are clients"] = True
    name = "apple"
    family = "personalised"
    against = ("labels",)
    use_when = (
        "Few clients trust each other, and each learns which models help it; every client receives K models."
    )
    personal = True
    weights_read = "each"
    keeps_at_server = ("w",)
    hands_on = "models of all single clients as they sent them, and their parts of all samples"

    def has_schedule(self) -> bool:
        return True

    def refuse(self, fed: Fed) -> str | None:
        if fed.optimiser == "sgd":
            return None
        return "its steps are in units of a gradient of SGD; set optimiser=sgd"

    def weights(self, fed: Fed) -> Weights:
        return {"q": torch.zeros(fed.clients)}

    def keeps(self, name: str, fed: Fed) -> bool:
        return name == "apple.q"

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        return {"w": first_models(w, fed)}

    def server(self, s: Tree, ups: Ups, fed: Fed) -> Tree:
        return {"w": last_models(s["w"], ups)}

    def dispatch(self, w: Weights, s: Tree, k: int, fed: Fed) -> tuple[Weights, Tree]:
        core_K = {n: t for n, t in s["w"].items() if n in fed.shared}
        return w | {n: t[k] for n, t in s["w"].items()}, {
            "core": core_K,
            "first": torch.tensor(fed.sizes / fed.sizes.sum(), dtype=torch.float32),
        }

    def perturb(self, g: Weights, w: Weights, c: Client) -> Weights:
        return w | self.own(w, c)

    def grad(self, g: Weights, w: Weights, c: Client) -> Weights:
        p_K, mine_K = self.p(w, c), self.mine(c)
        along_K = torch.stack(
            [
                torch.einsum("k...,...->k", core_K, g[n]) * ~mine_K + (w[n] * g[n]).sum() * mine_K
                for n, core_K in c.down["core"].items()
            ]
        ).sum(0)
        r, R = c.t - 1, self.until * c.fed.rounds
        lam = (math.cos(math.pi * r / R) + 1) / 2 if r < R else 0.0
        slope_K = along_K + self.mu * lam * w["apple.q"]
        step = (p_K * mine_K).sum() * (c.fed.clients if self.scaled else 1)
        pace = self.rate / c.lr if c.lr > SMALLEST else 0.0
        return g | {n: step * g[n] for n in c.down["core"]} | {"apple.q": pace * slope_K}

    def personalise(self, w: Weights, c: Client) -> Weights:
        return w | self.own(w, c)

    def own(self, w: Weights, c: Client) -> Weights:
        """W_k from the client's current core model and the received core models of the others."""
        p_K, mine_K = self.p(w, c), self.mine(c)
        return {
            n: torch.einsum("k,k...->...", p_K * ~mine_K, core_K) + (p_K * mine_K).sum() * w[n]
            for n, core_K in c.down["core"].items()
        }

    def mine(self, c: Client) -> Tensor:
        """The client's position among the core models, bool [K]."""
        return torch.arange(c.fed.clients, device=c.n.device) == c.id

    def p(self, w: Weights, c: Client) -> Tensor:
        """Shares of the core models in the client's own model, [K]."""
        return c.down["first"].to(w["apple.q"]) + w["apple.q"]
