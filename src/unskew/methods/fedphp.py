"""FedPHP (Li et al., ECML PKDD 2021): an average of a client's past models teaches the one it trains.

Client: w descends  (1 - lam) CE + lam R   from the received w_t, and is sent
        p_k: its inherited model, in evaluation mode
        R = MMD(h, h_p) of the features;   with teach=logits  R = CE(softmax(z_p / 4), z)
        then  p_k <- m p_k + (1 - m) w,   m = 0.9 min(z_k / Z, 1)
        z_k: the rounds it trained in before;   Z = takes T
MMD:    mean_ij  k(h_i, h_j) + k(p_i, p_j) - 2 k(h_i, p_j)
        k(a, b) = sum_{i=0..4} exp(-|a - b|^2 / (2^(i - 2) s))
        s: the mean of |a - b|^2 over all pairs of the batch's features of both models, a constant
        0 for a single sample
Test:   a client's own score is that of p_k; other scores are the global model's
Differs from the paper: in its first round a client inherits the received model, in the authors' code the
initial one. That code clips gradients, takes at least five local steps, and also compares single samples, for
which s is only rounding if the models are equal. PFLlib is another method: there the received model teaches,
and training starts from a mixture with the client's last model.
Defaults: those of the authors' program, which also tries lam = 0.05.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from unskew.core import Batch, Client, Fed, Out, Remembered, Tensor, Tree, Weights
from unskew.formats.setting_ranges import BelowOne, Fraction, PositiveFraction

_WIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)
_TEMPERATURE = 4.0


@dataclass(frozen=True)
class FedPHP(Remembered):
    """Keeps at each client an average of the models it trained, which teaches the received one."""

    lam: Annotated[Fraction, "weight of what the inherited model teaches; the rest is the labels'"] = 0.1
    teach: Annotated[Literal["features", "logits"], "what the inherited model teaches by"] = "features"
    most: Annotated[BelowOne, "share of the inherited model that stays, in the end"] = 0.9
    takes: Annotated[PositiveFraction, "share of the rounds in which a client is expected to take part"] = 1.0
    name = "fedphp"
    equal_samples = True
    family = "personalised"
    against = ("labels",)
    use_when = (
        "Clients want personal models that change gradually when a common one arrives, at the cost of"
        " FedAvg and one more forward pass."
    )
    tasks = ("classification",)
    needs = "probabilities of classes"
    neutral = {"lam": 0.0}
    clashes = {"flea": "its student would see FLea's mixture and its teacher the sample alone"}

    def has_schedule(self) -> bool:
        return True

    def client_init(self, w: Weights, fed: Fed) -> Tree:
        return super().client_init(w, fed) | {"z": torch.zeros(())}

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor:
        p, x = self.last(c.start, c), out.own.x
        if self.teach == "logits":
            q_BC = (c.run(p, x).detach() / _TEMPERATURE).softmax(-1)
            taught = b.mean(-(q_BC * out.logits.log_softmax(-1)).sum(-1))
        else:
            taught = discrepancy(out.features, c.features(p, x).detach(), b.weight)
        return self.lam * (taught - b.mean(c.fed.task.loss(out.logits, b.y)))

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        z = c.mine["z"]
        m = self.most * (z / (self.takes * c.fed.rounds)).clamp(max=1)
        trained = super().finish(w, c)[1]["w"]
        return {}, {"w": {n: m * c.mine["w"][n] + (1 - m) * t for n, t in trained.items()}, "z": z + 1}


def discrepancy(h_BD: Tensor, p_BD: Tensor, weight_B: Tensor) -> Tensor:
    """The maximum mean discrepancy of two batches of features of the same samples; 0 for one sample, which
    has no spread."""
    f_ND, pairs_N = torch.cat([h_BD, p_BD]), torch.cat([weight_B, weight_B])
    distance_NN = torch.cdist(f_ND, f_ND, compute_mode="donot_use_mm_for_euclid_dist").pow(
        2
    )  # 0 where features are equal
    N = pairs_N.sum()
    mean = (distance_NN.detach() * torch.outer(pairs_N, pairs_N)).sum() / (N * N - N).clamp(min=1) + 1e-8
    k_NN = torch.stack([(-distance_NN / (width * mean)).exp() for width in _WIDTHS]).sum(0)
    sign_N = torch.cat([weight_B, -weight_B])
    B = weight_B.sum()
    return (B > 1) * (sign_N @ k_NN @ sign_N) / B.clamp(min=1).pow(2)
