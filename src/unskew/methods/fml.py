"""FML (Shen et al. 2020, arXiv 2006.16765): federated mutual learning of a local and the common model.

Client: the common model w descends  beta CE(z, y)  + (1 - beta) KL(p_own || p)
        the local model descends     alpha CE(z_own, y) + (1 - alpha) KL(p || p_own)
        p: softmax outputs;   teachers are constants;   both models step at the same time
        w is merged, the local model stays
Test:   a client's own score is that of its local model; other scores are the common model's
Differs from the paper: both models have one architecture and begin alike; in the paper the local model may be
any. The merge weighs clients by size, the paper's equally. PFLlib divides KL by the number of classes, lets
it act on the teacher, too, and clips gradients at norm 10; its alpha and beta are 1 and 0 unless they are
set, so that the common model sees no labels.
Defaults: those of the official program.
"""

from dataclasses import dataclass
from typing import Annotated

from unskew.core import Batch, Client, Out, OwnModel, Tensor, Weights
from unskew.formats.setting_ranges import Fraction


@dataclass(frozen=True)
class FML(OwnModel):
    """Trains a local model together with the common one; each is the other's teacher."""

    alpha: Annotated[Fraction, "weight of the labels for the own model; the rest is the common model's"] = 0.5
    beta: Annotated[Fraction, "weight of the labels for the common model; the rest is the own model's"] = 0.5
    name = "fml"
    family = "personalised"
    against = ("labels",)
    use_when = "Clients want a personal and a common model; training costs twice as much."
    tasks = ("classification",)
    needs = "probabilities of classes"
    clashes = {"flea": "its two models would see FLea's mixture and the sample alone"}

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor:
        z_own = c.run_training(self.own(w), out.own.x)
        common = (self.beta - 1) * c.fed.task.loss(out.logits, b.y) + (1 - self.beta) * kl_divergence(
            z_own.detach(), out.raw
        )
        own = self.alpha * c.fed.task.loss(z_own, out.own.y) + (1 - self.alpha) * kl_divergence(
            out.raw.detach(), z_own
        )
        return b.mean(common + own)


def kl_divergence(teacher_BC: Tensor, z_BC: Tensor) -> Tensor:
    """KL(softmax(teacher) || softmax(z)) of each sample."""
    q = teacher_BC.log_softmax(-1)
    return (q.exp() * (q - z_BC.log_softmax(-1))).sum(-1)
