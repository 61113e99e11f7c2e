"""FedSR (Nguyen, Torr & Lim, NeurIPS 2022): simple features, which differ little between domains.

Client: h: the head's input, the mean of  z = h + s e,   e ~ N(0, 1),   s = softplus(A h + a) of
        each sample
        descends  CE(head(z)) + l2r mean_i |z_i| + cmi mean_i KL_i
        KL_i = sum_d  ln r - ln q + (q^2 + (c h_d - m)^2) / (2 r^2) - 1/2
        q = |c| s_d,   m = m_yd,   r = softplus(r_yd)
        A and a are sent and merged;   m, r and c, which begin at 0, 1 and 1, are trained and stay
Test:   the model on h, without noise
Differs from the paper: s is computed from h; its network has s as further outputs of the layer of h. Public
code scores the mean of the probabilities of twenty z; its term is |z|, as here. FL-bench also merges m, r and
c (`merged=True`), and scores one z.
Defaults: those of the official example.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F

from unskew.core import Batch, Client, Fed, Noise, Out, Part, Tensor, Tree, Weights, key
from unskew.formats.setting_ranges import NonNegative

_EPS = 1e-12


@dataclass(frozen=True)
class FedSR(Part):
    """Adds noise to features, keeps them short, and keeps them near a distribution of their class."""

    l2r: Annotated[NonNegative, "weight of the features' length"] = 0.01
    cmi: Annotated[NonNegative, "weight of what features tell of a sample beyond its class"] = 0.001
    merged: Annotated[bool, "merge the distributions of classes, too; False: each client has its own"] = False
    name = "fedsr"
    alone = True
    family = "representation"
    against = ("features",)
    use_when = "Images look different from site to site, and the model is to serve a new site."
    tasks = ("classification",)
    needs = "a distribution of features for each class"

    def refuse(self, fed: Fed) -> str | None:
        return fed.net.untrained_head(alone=True)

    def weights(self, fed: Fed) -> Weights:
        C, D, draw = fed.classes, fed.features, key(fed.seed, self.name, "spread")
        normal = torch.randn(D, D + 1, generator=draw) / D**0.5
        return {
            "A": normal[:, :D].clone(),
            "a": normal[:, D].clone(),
            "m": torch.zeros(C, D),
            "r": torch.ones(C, D),
            "c": torch.ones(()),
        }

    def keeps(self, name: str, fed: Fed) -> bool:
        return not self.merged and name in ("fedsr.m", "fedsr.r", "fedsr.c")

    def noise(self, fed: Fed, down: Tree) -> dict[str, Noise]:
        return {"e": Noise("normal", shape=(fed.features,))}

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor:
        h_BD = out.features
        s_BD = F.softplus(h_BD @ w["fedsr.A"].T + w["fedsr.a"]).clamp(min=_EPS)
        z_BD = h_BD + s_BD * c.noise["e"]
        logits = out.logits + c.head(w, z_BD) - c.head(w, h_BD)
        noisy = b.mean(c.fed.task.loss(logits, b.y) - c.fed.task.loss(out.logits, b.y))
        length = b.mean((z_BD.pow(2).sum(1) + _EPS).sqrt())
        return noisy + self.l2r * length + self.cmi * b.mean(self.beyond(w, h_BD, s_BD, b.y))

    def beyond(self, w: Weights, h_BD: Tensor, s_BD: Tensor, y_BC: Tensor) -> Tensor:
        """KL divergence of the distribution of c z from that of the sample's class, [B]."""
        m_BD, r_BD = y_BC @ w["fedsr.m"], y_BC @ F.softplus(w["fedsr.r"])
        q_BD = (w["fedsr.c"] * s_BD).abs().clamp(min=_EPS)
        far_BD = (q_BD.pow(2) + (w["fedsr.c"] * h_BD - m_BD).pow(2)) / (2 * r_BD.pow(2))
        return (r_BD.log() - q_BD.log() + far_BD - 0.5).sum(1)
