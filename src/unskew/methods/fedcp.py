"""FedCP (Zhang et al., KDD 2023, arXiv 2307.01217): divides features between a common and a personal head.

Client: P: the personal head;   G: the received head, a constant
        u: the sum over classes of P's rows at the beginning of the round, scaled to length 1
        a = relu(LayerNorm(linear map of h u)), of 2 D numbers
        r = sigmoid(a_1..D - a_D+1..2D + noise), a share for each feature
        noise: the difference of two Gumbel numbers
        descends  CE(P(h r) + G(h (1 - r))) + lam MMD(h, h_t)
        h_t: the received model's features in evaluation mode
        sends body and map, and (P + G) / 2 for the head;   keeps P
MMD:    mean_ij  k(h_i, h_j) + k(h_t,i, h_t,j) - 2 k(h_i, h_t,j)
        k(x, y) = sum of e^(-|x - y|^2 / (2 s)) over s = 10, 15, 20, 50
Test:   a client's own score is that of P(h r) + G(h (1 - r)), without noise; other scores are those
        of the merged head on h
Differs from the paper: public code draws noise at test time, too, takes a random u in a client's first round,
and has h_t in training mode. One optimiser trains body, map and P.
Defaults: lam is that of the authors' script.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import nn

from unskew.core import Batch, Client, Fed, Noise, Out, Part, Tensor, Tree, Weights, key, under
from unskew.formats.setting_ranges import NonNegative

_WIDTHS = (10.0, 15.0, 20.0, 50.0)
_EPS = 1e-7


@dataclass(frozen=True)
class FedCP(Part):
    """Adds a personal head to the common one, and a policy that divides features between them."""

    lam: Annotated[NonNegative, "weight of what keeps features near the received model's"] = 5.0
    name = "fedcp"
    equal_samples = True
    own_logits = True
    family = "personalised"
    against = ("labels",)
    use_when = (
        "Labels differ by client, and samples of one client differ in how personal they are; sends D^2"
        " more numbers."
    )
    tasks = ("classification",)
    needs = "a head for each class"
    divides = True
    personal = True
    clashes = {"flea": "it would compare features of FLea's mixture with those of the sample alone"}

    def refuse(self, fed: Fed) -> str | None:
        if text := fed.net.untrained_head(alone=True):
            return text
        head = fed.net.module.get_submodule(fed.net.head)
        if isinstance(head, nn.Linear) and f"{fed.net.head}.weight" in fed.net.trainable:
            return None
        return f"it needs the rows of a linear head, and the model's '{fed.net.head}' has none of its own"

    def weights(self, fed: Fed) -> Weights:
        D, draw = fed.features, key(fed.seed, self.name, "policy")
        uniform = (2 * torch.rand(2 * D, D + 1, generator=draw) - 1) / D**0.5
        policy = {"map": uniform[:, :D].clone(), "shift": uniform[:, D].clone()}
        norm = {"norm": torch.stack([torch.ones(2 * D), torch.zeros(2 * D)]), "on": torch.zeros(())}
        return policy | norm | {n: t for n, t in fed.net.weights().items() if fed.net.of_head(n)}

    def keeps(self, name: str, fed: Fed) -> bool:
        own = name.removeprefix("fedcp.")
        return name != own and (own == "on" or fed.net.of_head(own))

    def freezes(self, name: str, fed: Fed) -> bool:
        return name == "fedcp.on"

    def noise(self, fed: Fed, down: Tree) -> dict[str, Noise]:
        return {"u": Noise("uniform", shape=(2, fed.features))}

    def holds(self, c: Client) -> dict[str, Tensor]:
        return {n: c.step >= 0 for n in c.net.trainable if c.net.of_head(n)}

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor:
        h_BD = out.features
        gumbel_B2D = -(-c.noise["u"].clamp(_EPS, 1 - _EPS).log()).log()
        z_BC = self.divided(w, h_BD, c, gumbel_B2D[:, 0] - gumbel_B2D[:, 1])
        fits = b.mean(c.fed.task.loss(z_BC, b.y) - c.fed.task.loss(out.logits, b.y))
        received_BD = c.features(c.start, out.own.x).detach()
        return fits + self.lam * discrepancy(h_BD, received_BD, b.weight)

    def divided(self, w: Weights, h_BD: Tensor, c: Client, noise_BD: Tensor | float = 0.0) -> Tensor:
        """Logits of both heads, each on its share of the features; [B, C]."""
        u_D = F.normalize(c.start[f"fedcp.{c.net.head}.weight"].detach().sum(0), dim=0)
        a_BN = h_BD * u_D @ w["fedcp.map"].T + w["fedcp.shift"]
        a_BN = (F.layer_norm(a_BN, a_BN.shape[1:]) * w["fedcp.norm"][0] + w["fedcp.norm"][1]).relu()
        own_BD, common_BD = a_BN.chunk(2, 1)
        r_BD = (own_BD - common_BD + noise_BD).sigmoid()
        common = {n: t.detach() for n, t in c.start.items() if c.net.of_head(n)}
        return c.head(w | under(w, self.name), h_BD * r_BD) + c.head(w | common, h_BD * (1 - r_BD))

    def sends(self, w: Weights, c: Client) -> Weights:
        return w | {n: (w[n] + w[f"fedcp.{n}"]) / 2 for n in c.net.trainable if c.net.of_head(n)}

    def personalise(self, w: Weights, c: Client) -> Weights:
        return w | {"fedcp.on": torch.ones_like(w["fedcp.on"])}

    def scores(self, z: Tensor, h: Tensor, c: Client) -> Tensor:
        w, h_BD = c.start, h
        return z + w["fedcp.on"] * (self.divided(w, h_BD, c) - c.head(w, h_BD))


def discrepancy(h_BD: Tensor, g_BD: Tensor, weight_B: Tensor) -> Tensor:
    """The maximum mean discrepancy of two batches of features of the same samples, under Gaussian kernels of
    fixed widths."""
    f_ND, sign_N = torch.cat([h_BD, g_BD]), torch.cat([weight_B, -weight_B])
    distance_NN = torch.cdist(f_ND, f_ND, compute_mode="donot_use_mm_for_euclid_dist").pow(2)
    k_NN = torch.stack([(-distance_NN / (2 * width)).exp() for width in _WIDTHS]).sum(0)
    return sign_N @ k_NN @ sign_N / weight_B.sum().clamp(min=1).pow(2)
