"""GPFL (Zhang et al., ICCV 2023, arXiv 2308.10279): global and personal features from one body.

V:      V(f, u) = relu(f (gamma(u) + 1) + beta(u)),   f: the body's features
        gamma(u), beta(u): LayerNorm(relu(linear map of u)), of D numbers each
        E_c: an embedding of class c;   with the received E
        g = mean_c E_c,   p_k = sum_c (n_kc / n_k) E_c;   both 0 in round 1
Client: descends  CE(head_k(V(f, p_k))) + CE(cos(V(f, g), E)) + lam |V(f, g) - E_y|
        the last E as received;   |.| over the batch's features together
        sends the body, V and E;   its head stays
Server: the mean of bodies, V and E
Test:   clients are scored by their head on V(f, p_k), with the received body, V and E
Differs from the paper: V and E have the optimiser's momentum and weight decay; in the paper a separate mu.
Public code computes g and p_k from the E that the client trained last instead of the received one.
Defaults: lam is that of the authors' script for small CNNs and MLPs.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F

from unskew.core import Batch, Client, Fed, Out, Part, Tensor, Weights, key
from unskew.formats.setting_ranges import NonNegative

_EPS = 1e-12


@dataclass(frozen=True)
class GPFL(Part):
    """Keeps heads at the clients, which read features under each client's own condition; the embeddings of
    classes are common."""

    lam: Annotated[NonNegative, "weight of the distance of features to their class's embedding"] = 0.01
    name = "gpfl"
    equal_samples = True
    family = "personalised"
    against = ("labels",)
    use_when = "Labels differ by client, and one body is to serve both the common and the personal task."
    tasks = ("classification",)
    needs = "embeddings of classes"
    divides = True

    def refuse(self, fed: Fed) -> str | None:
        return fed.net.untrained_head(alone=True)

    def keeps(self, name: str, fed: Fed) -> bool:
        return fed.net.of_head(name)

    def weights(self, fed: Fed) -> Weights:
        C, D, draw = fed.classes, fed.features, key(fed.seed, self.name, "condition")
        maps = {f"{which}.map": _uniform(D, D, draw) for which in ("gamma", "beta")}
        shifts = {f"{which}.shift": _uniform(1, D, draw)[0] for which in ("gamma", "beta")}
        norms = {f"{which}.norm": torch.stack([torch.ones(D), torch.zeros(D)]) for which in ("gamma", "beta")}
        return {"E": torch.randn(C, D, generator=draw)} | maps | shifts | norms

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor:
        f_BD, E_CD = out.features, c.start["gpfl.E"].detach()
        heard = float(c.t > 1)
        own_BD, all_BD = (self.conditioned(w, f_BD, heard * u) for u in (self.own(E_CD, c), E_CD.mean(0)))
        z_BC = out.logits + c.head(w, own_BD) - c.head(w, f_BD)
        classes_BC = F.normalize(all_BD) @ F.normalize(w["gpfl.E"]).T
        loss = c.fed.task.loss
        away = ((all_BD - b.y @ E_CD).pow(2).sum(1) * b.weight).sum()
        fits = loss(z_BC, b.y) - loss(out.logits, b.y) + loss(classes_BC, b.y)
        return b.mean(fits) + self.lam * (away + _EPS).sqrt()

    def own(self, E_CD: Tensor, c: Client) -> Tensor:
        """The mean of classes' embeddings, weighted by the client's share of each class, [D]."""
        return c.counts / c.counts.sum().clamp(min=1) @ E_CD

    def conditioned(self, w: Weights, f_BD: Tensor, u_D: Tensor) -> Tensor:
        """The conditioned features V(f, u), [B, D]."""

        def of(which: str) -> Tensor:
            v_D = (w[f"gpfl.{which}.map"] @ u_D + w[f"gpfl.{which}.shift"]).relu()
            scale_D, shift_D = w[f"gpfl.{which}.norm"]
            return F.layer_norm(v_D, v_D.shape) * scale_D + shift_D

        return (f_BD * (of("gamma") + 1) + of("beta")).relu()

    def scores(self, z: Tensor, h: Tensor, c: Client) -> Tensor:
        f_BD, w = h, c.start
        own_BD = self.conditioned(w, f_BD, float(c.t > 0) * self.own(w["gpfl.E"], c))
        return z + c.head(w, own_BD) - c.head(w, f_BD)


def _uniform(rows: int, D: int, draw: torch.Generator) -> Tensor:
    """Uniform initial numbers of a linear layer with D inputs, [rows, D]."""
    return (2 * torch.rand(rows, D, generator=draw) - 1) / D**0.5
