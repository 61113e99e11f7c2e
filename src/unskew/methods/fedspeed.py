"""FedSpeed (Sun et al., ICLR 2023, arXiv 2302.10429): a bias-corrected proximal pull, with SAM gradients.

Client, at every step:  g_1 = grad L(w),   g = grad L(w + rho g_1 / ||g_1||)
        w <- w - lr (g - h_k + mu (w - w_t))
        then, after S local steps,  h_k' = h_k - mu (w_S - w_t);   h_k begins at 0
        sends w_S - h_k' / mu
Server: w_{t+1} = mean_k of the replies      mu is 1 / lambda of the paper
        with `everyone`: clients send w_S;   w_{t+1} = mean_k w_S + H
        H: the mean of - h_k' / mu over all clients, including absent ones
Statistics of batch normalisation take the plain mean.
Differs from the paper: its share alpha of the second gradient is 1, as in the official code, so that g_1
enters only by its direction, scaled to length rho. The paper does not clip gradients; its code does, at norm
10. Its code takes the mean of - h_k' / mu over all clients (`everyone=True`), the paper over those that
answer; if all answer, both agree.
Defaults: those of FL-Simulator, the authors' program.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le

from unskew.core import Client, Fed, Part, Tree, Ups, Weights
from unskew.merge.mean import weighted_mean
from unskew.methods.fedsam import scale_to_norm


@dataclass(frozen=True)
class FedSpeed(Part):
    """Corrects the bias of a proximal pull, and takes gradients where the loss is highest nearby."""

    mu: Annotated[float, Ge(1e-9), Le(1_000_000), "strength of the pull towards the received model"] = 0.1
    rho: Annotated[float, Ge(0), Le(1000), "how far the gradient is taken from the weights"] = 0.1
    everyone: Annotated[
        bool, "correct by all clients, absent ones too, as its code; False: by those that answer"
    ] = False
    name = "fedspeed"
    family = "steps"
    against = ("labels",)
    use_when = "Many local steps at a large learning rate, to save rounds; a step costs two gradients."
    weighting = "equal"
    climbs = 1
    keeps_at_server = ("H",)

    @property
    def merges(self) -> bool:  # type: ignore[override]
        return self.everyone

    @property
    def proximal(self) -> float:  # type: ignore[override]
        return self.mu

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        return {"H": {n: torch.zeros_like(w[n]) for n in fed.shared}} if self.everyone else {}

    def client_init(self, w: Weights, fed: Fed) -> Tree:
        return {"h": {n: torch.zeros_like(w[n]) for n in fed.shared}}

    def perturb(self, g: Weights, w: Weights, c: Client) -> Weights:
        return w | {n: w[n] + e for n, e in scale_to_norm(g, self.rho).items()}

    def grad(self, g: Weights, w: Weights, c: Client) -> Weights:
        return g | {n: g[n] - h + self.mu * (w[n] - c.start[n]) for n, h in c.mine["h"].items()}

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        return {}, {"h": {n: h - self.mu * (w[n] - c.start[n]) for n, h in c.mine["h"].items()}}

    def sends(self, w: Weights, c: Client) -> Weights:
        """The sent weights w_S - h_k' / mu, with the h_k' of `finish`."""
        if self.everyone:
            return w
        return w | {n: w[n] - (h / self.mu - (w[n] - c.start[n])) for n, h in c.mine["h"].items()}

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        mean = weighted_mean(w, ups)
        H = {n: h + len(ups) / fed.clients * (mean[n] - w[n]) for n, h in s["H"].items()}
        return mean | {n: mean[n] + h for n, h in H.items()}, {"H": H}
