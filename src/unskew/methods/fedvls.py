"""FedVLS (Guo et al., AAAI 2025, arXiv 2401.02329): distils absent classes and lowers wrong logits.

Client: CE(z + log p, y) + lam L_vacant + mu L_logit
        p: the client's label shares; a class it lacks is masked out of CE
        L_vacant = mean_i KL(q_g || q), both softmax over the classes that the client lacks; 0
        without any
        L_logit = sum_c p_c log mean_i exp([y_i != c] (z_ic - log p_c - log C))
        q_g: that of the received model in evaluation mode, a constant
Test:   z
With lam = mu = 0 it is bsm.
Differs from the paper: the terms are those of the official code, in which the weight of L_logit is 0.005; it
masks by log(p + 1e-9), ours exactly, and its q_g comes from a model in training mode. The command on its page
has lam = 0.1, the code's default is 1.
"""

from dataclasses import dataclass
from typing import Annotated

import torch

from unskew.core import Batch, Client, Out, Part, Tensor, Weights
from unskew.formats.setting_ranges import NonNegative
from unskew.methods.bsm import BSM, conflicts_of_prior

NEVER = -1e9
"""A logit that excludes a class from a softmax; unlike minus infinity it gives no NaN if all are excluded."""


@dataclass(frozen=True)
class FedVLS(Part):
    """Distils the received model's view of the classes a client lacks, and lowers the logits of wrong
    classes."""

    lam: Annotated[NonNegative, "weight of the distillation of absent classes"] = 0.1
    mu: Annotated[NonNegative, "weight of the lowering of wrong classes' logits"] = 0.005
    name = "fedvls"
    family = "classifier"
    against = ("labels",)
    use_when = (
        "Clients lack many classes and forget them while they train; a step costs one more forward pass."
    )
    tasks = ("classification",)
    plain_loss = True
    needs = "class counts"
    clashes = conflicts_of_prior(name)

    def logits(self, z: Tensor, b: Batch, c: Client) -> Tensor:
        return BSM().logits(z, b, c)

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor:
        teacher_BC = c.run(c.start, out.own.x).detach()
        forgotten = b.mean(vacant(out.raw, teacher_BC, c.counts))
        return self.lam * forgotten + self.mu * wrong(out.raw, out.own.y, b.weight, c.counts)


def vacant(z_BC: Tensor, g_BC: Tensor, n_C: Tensor) -> Tensor:
    """KL(softmax(g) || softmax(z)) of each sample over the classes without a sample; 0 if there is none."""
    q, p = (v.masked_fill(n_C > 0, NEVER).log_softmax(-1) for v in (g_BC, z_BC))
    return torch.where(n_C > 0, 0.0, q.exp() * (q - p)).sum(-1)


def wrong(z_BC: Tensor, y_BC: Tensor, weight_B: Tensor, n_C: Tensor) -> Tensor:
    """The term sum_c p_c log mean_i exp([y_i != c] (z_ic - log p_c - log C)), a scalar; padding does not
    count."""
    p_C, C = n_C / n_C.sum(), len(n_C)
    label_BC = torch.nn.functional.one_hot(y_BC.argmax(-1), C).bool()
    above_BC = (z_BC - (n_C.clamp(min=1) / n_C.sum() * C).log()).masked_fill(label_BC, 0.0)
    counted_BC = above_BC.masked_fill(weight_B[:, None] == 0, NEVER)
    return (p_C * (counted_BC.logsumexp(0) - weight_B.sum().clamp(min=1).log())).sum()
