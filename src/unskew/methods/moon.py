"""MOON (Li, He & Song, CVPR 2021, arXiv 2103.16257): features near the global, far from the last local.

Model:  a projection Linear-ReLU-Linear between body and head; r is its output and the head's input
Client: loss + mu mean_i -log( e^(cos(r, r_g)/T) / (e^(cos(r, r_g)/T) + e^(cos(r, r_p)/T)) )
        r_g: of the received model;   r_p: of this client's model at the end of its last round
        both are constants in evaluation mode
After an absence, the client's last model is as old as the absence.
Differs from the paper: the paper does not define r_p when a client first takes part; the term is then left
out, as in its code.
Defaults: those of the authors' program; its example for CIFAR-10 has mu = 5.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Ge, Le
from torch import nn

from unskew.core import Batch, Client, Fed, Out, Part, Tensor, Tree, Weights, with_projection
from unskew.formats.setting_ranges import NonNegative


@dataclass(frozen=True)
class MOON(Part):
    """Pulls a client's features towards the received model's and away from those of its last local model."""

    mu: Annotated[NonNegative, "weight of the contrastive loss"] = 1.0
    temperature: Annotated[float, Ge(1e-3), Le(1000), "T, which divides the cosines"] = 0.5
    width: Annotated[
        int, Ge(0), Le(65_536), "units of the projection; 0: none, and r is what the head receives"
    ] = 256
    name = "moon"
    family = "representation"
    against = ("labels",)
    use_when = "Image models are trained for many local epochs; it costs two more forward passes a step."
    tasks = ("classification", "regression", "multilabel")
    needs = "one row of features a sample"
    clashes = {"flea": "its student would see FLea's mixture and its teacher the sample alone"}

    def model(self, module: nn.Module, classes: int) -> nn.Module:
        return with_projection(module, self.width) if self.width else module

    def client_init(self, w: Weights, fed: Fed) -> Tree:
        return {"last": learnt(w, fed), "known": torch.zeros(())}

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor | float:
        if not self.mu:
            return 0.0
        near, far = c.features(c.start, b.x).detach(), c.features({**c.start, **c.mine["last"]}, b.x).detach()
        return self.mu * c.mine["known"] * b.mean(contrast(out.features, near, far, self.temperature))

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        return {}, {"last": learnt(w, c.fed), "known": torch.ones_like(c.mine["known"])}


def learnt(w: Weights, fed: Fed) -> Weights:
    """The weights without those that are frozen in the model, which every client has anyway."""
    return {n: t for n, t in w.items() if n not in fed.net.constants}


def contrast(r_BD: Tensor, near_BD: Tensor, far_BD: Tensor, temperature: float) -> Tensor:
    """The negative logarithm of the softmax share of the cosine to `near` against the cosine to `far`, for
    each sample."""
    gap_B = F.cosine_similarity(r_BD, far_BD) - F.cosine_similarity(r_BD, near_BD)
    return F.softplus(gap_B / temperature)
