"""FedKD (Wu, Wu, Lyu, Huang & Xie, Nature Communications 2022, arXiv 2108.13323): a mentor and a mentee.

Client: the mentee w, which is sent, and the mentor v_k, which stays, descend together
        CE_w + CE_v + (KL(p_v || p_w) + KL(p_w || p_v) + 2 mean (h_v - W_k h_w)^2) / (CE_w + CE_v)
        p: softmax outputs;   h: features;   mean over B and D
        W_k: the client's own matrix, which makes the features comparable
Test:   a client's own score is that of v_k; other scores are the mentee's
The paper's other half, sending changes by their main directions, is the method `svd`: `fedkd+svd`.
Differs from the paper: mentor and mentee have one architecture and begin alike; features are compared at the
head's input; the paper compares them, and attention, in every layer. Public codes divide KL by the number of
classes and weigh clients equally, and PFLlib clips gradients at norm 10.
"""

from dataclasses import dataclass

import torch

from unskew.core import Batch, Client, Fed, Out, OwnModel, Tensor, Weights, key
from unskew.methods.fml import kl_divergence


@dataclass(frozen=True)
class FedKD(OwnModel):
    """Trains a local mentor together with the common model, each learning from the other as far as both are
    right."""

    name = "fedkd"
    family = "personalised"
    against = ("labels",)
    use_when = (
        "Clients want a personal and a common model, and neither is to learn from the other while that"
        " one is poor."
    )
    tasks = ("classification",)
    needs = "probabilities of classes"
    clashes = {"flea": "its two models would see FLea's mixture and the sample alone"}

    def weights(self, fed: Fed) -> Weights:
        D, draw = fed.features, key(fed.seed, self.name, "hidden")
        return super().weights(fed) | {"hidden": torch.randn(D, D, generator=draw) / D**0.5}

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor:
        v, x, y = self.own(w), out.own.x, out.own.y
        h_w, h_v = out.features, c.run_training(v, x, until="features")
        z_v = c.head(v, h_v)
        own, common = b.mean(c.fed.task.loss(z_v, y)), b.mean(c.fed.task.loss(out.logits, b.y))
        hidden = (h_v - h_w @ w["fedkd.hidden"].T).pow(2).mean(1)
        return own + b.mean(kl_divergence(z_v, out.raw) + kl_divergence(out.raw, z_v) + 2 * hidden) / (
            own + common
        )
