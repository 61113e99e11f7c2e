"""FedSMOO (Sun et al., ICML 2023, arXiv 2305.11584): FedDyn with a SAM step towards the common direction.

Client, at every step:  g_1 = grad L(w),   e = rho (g_1 - m_k - s) / |g_1 - m_k - s|
        w <- w - lr (grad L(w + e) + mu (w - w_t + h_k)),   m_k <- m_k + e - s
        then, after S local steps,  h_k <- h_k + w_S - w_t
        m_k and h_k begin at 0 and stay with the client;   it sends w_S and m_k
Server: s <- rho mean_k m_k / |mean_k m_k|,   w_{t+1} = mean_k w_S + H
        H: the mean of h_k over all clients, including absent ones
|.| is over all shared weights. mu is 1 / beta of the paper. Statistics of batch normalisation take the plain
mean.
Differs from the paper: it also includes each client's last e in the mean at the server; the official code
leaves it out, and so does ours. Its code clips gradients at norm 10.
Defaults: those of FL-Simulator, the authors' program.
"""

from dataclasses import dataclass
from typing import Annotated

import torch

from unskew.core import Client, Fed, Part, Share, Tensor, Tree, Ups, Weights
from unskew.formats.setting_ranges import Positive, Rate
from unskew.merge.mean import weighted_mean
from unskew.methods.fedsam import scale_to_norm


@dataclass(frozen=True)
class FedSMOO(Part):
    """Moves each client's optimum to that of all, and its SAM perturbation to the common direction."""

    mu: Annotated[Positive, "strength of the pull towards the corrected received model"] = 0.1
    rho: Annotated[Rate, "how far the gradient is taken from the weights"] = 0.1
    name = "fedsmoo"
    family = "steps"
    against = ("labels",)
    use_when = (
        "As FedDyn and FedSAM together: many local steps on skewed labels, clients that come back, two"
        " gradients a step."
    )
    merges = True
    weighting = "equal"
    climbs = 1
    keeps_at_server = ("H",)

    @property
    def proximal(self) -> float:  # type: ignore[override]
        return self.mu

    def refuse(self, fed: Fed) -> str | None:
        return None if fed.shared else "it searches in a common direction, and clients keep every weight"

    def shares(self, fed: Fed) -> dict[str, Share]:
        w, what = fed.net.weights(), "dual variable of the ascent"
        return {
            f"m/{n}": Share(tuple(w[n].shape), what=what, kind="weights", samples="client")
            for n in fed.shared
        }

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        return {which: {n: torch.zeros_like(w[n]) for n in fed.shared} for which in ("s", "H")}

    def client_init(self, w: Weights, fed: Fed) -> Tree:
        return {which: {n: torch.zeros_like(w[n]) for n in fed.shared} for which in ("m", "h")}

    def begin(self, w: Weights, c: Client) -> Tree:
        return {"m": c.mine["m"]}

    def perturb(self, g: Weights, w: Weights, c: Client) -> Weights:
        return w | {n: w[n] + e for n, e in self.ascent(c).items()}

    def ascent(self, c: Client) -> dict[str, Tensor]:
        """The perturbation e from the step's first gradients, in the order of `fed.shared`, because a stored
        tree is sorted."""
        g, m, s = c.seen["0"], c.round["m"], c.down["s"]
        return scale_to_norm({n: g[n] - m[n] - s[n] for n in c.fed.shared}, self.rho)

    def grad(self, g: Weights, w: Weights, c: Client) -> Weights:
        return g | {n: g[n] + self.mu * (w[n] - c.start[n] + h) for n, h in c.mine["h"].items()}

    def carry(self, g: Weights, w: Weights, c: Client) -> Tree:
        m, s = c.round["m"], c.down["s"]
        return {"m": {n: m[n] + e - s[n] for n, e in self.ascent(c).items()}}

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        m = c.round["m"]
        return {"m": m}, {"m": m, "h": {n: h + w[n] - c.start[n] for n, h in c.mine["h"].items()}}

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        mean = weighted_mean(w, ups)
        H = {n: h + len(ups) / fed.clients * (mean[n] - w[n]) for n, h in s["H"].items()}
        return mean | {n: mean[n] + h for n, h in H.items()}, s | {"H": H}

    def server(self, s: Tree, ups: Ups, fed: Fed) -> Tree:
        m = ups["m"]
        return s | {"s": scale_to_norm({n: m[n].mean(0) for n in fed.shared}, self.rho)}
