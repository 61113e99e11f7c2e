"""FedNTD (Lee et al., NeurIPS 2022, arXiv 2106.03097): distils predictions for the classes not true.

Client: CE + beta tau^2 mean_i KL(q_g || q_l)
        q: softmax at temperature tau over the C - 1 classes other than y_i
        q_g: that of the received model in evaluation mode, a constant
        with two classes the term is 0
Differs from the paper: for a mixed label the class with the most weight counts as true.
Defaults: those of the official program.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Ge, Le

from unskew.core import Batch, Client, Out, Part, Tensor, Weights
from unskew.formats.setting_ranges import NonNegative


@dataclass(frozen=True)
class FedNTD(Part):
    """Distils the received model's predictions for the classes other than the true one."""

    beta: Annotated[NonNegative, "weight of the distillation; 0 is FedAvg"] = 1.0
    tau: Annotated[float, Ge(1e-3), Le(1000), "temperature of both softmaxes"] = 1.0
    name = "fedntd"
    alone = True
    family = "distillation"
    against = ("labels",)
    use_when = "Clients forget the classes they lack while they train."
    tasks = ("classification",)
    needs = "probabilities of classes"
    clashes = {"flea": "its student would see FLea's mixture and its teacher the sample alone"}

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor:
        teacher_BC = c.run(c.start, b.x).detach()
        return self.beta * b.mean(not_true(out.raw, teacher_BC, out.own.y, self.tau))


def not_true(z_BC: Tensor, g_BC: Tensor, y_BC: Tensor, tau: float) -> Tensor:
    """The loss tau^2 KL(softmax(g / tau) || softmax(z / tau)) of each sample over the classes other than the
    true one."""
    true_BC = F.one_hot(y_BC.argmax(-1), y_BC.shape[-1]).bool()
    q, p = ((v / tau).masked_fill(true_BC, -torch.inf).log_softmax(-1) for v in (g_BC, z_BC))
    gap = torch.where(true_BC, 0.0, q.masked_fill(true_BC, 0.0) - p.masked_fill(true_BC, 0.0))
    return tau**2 * (q.exp() * gap).sum(-1)
