"""PropFair (Zhang et al., TMLR 2023, arXiv 2202.01666): the product of the clients' utilities, not their sum.

Client: the loss L of a batch becomes  -log_eps(M - L)    M - L: the utility; M is `baseline`
        log_eps(u) = log u  for u >= eps,  else  u / eps - 1 + log eps, continued with the slope at
        eps
A step is therefore 1 / (M - L) times as long, at most 1 / eps times: clients with a larger loss take longer
steps.
Differs from the paper: other Parts' terms of the loss stay outside the logarithm. The official code continues
with the slope 1 / M unless its option huber is set; so does `huber=False`, with  log M - L / M  for u < eps.
M = 2 and eps = 0.2 are the defaults of that code; the paper chooses M by data set. Where losses are small,
steps are about 1 / M as long as those of FedAvg, so a larger M needs a higher learning rate.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch

from unskew.core import Batch, Client, Out, Part, Tensor, Weights
from unskew.formats.setting_ranges import Positive, Rate


@dataclass(frozen=True)
class PropFair(Part):
    """Trains on the logarithm of a utility, so that clients with a larger loss take longer steps."""

    baseline: Annotated[Positive, "M, a loss that no client should reach"] = 2.0
    eps: Annotated[Rate, "utility below which the logarithm goes on as a straight line"] = 0.2
    huber: Annotated[
        bool, "go on with the slope 1 / eps, as in the paper; False: 1 / M, as its code by default"
    ] = True
    name = "propfair"
    family = "fairness"
    use_when = (
        "Clients with the worst scores are to gain more than others lose, and the server is to read"
        " nothing more for it."
    )

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor:
        batch_loss = b.mean(c.fed.task.loss(out.logits, b.y))
        utility = self.baseline - batch_loss
        line = utility / self.eps - 1 + math.log(self.eps)
        if not self.huber:
            line = math.log(self.baseline) - batch_loss / self.baseline
        log = torch.where(utility >= self.eps, utility.clamp(min=self.eps).log(), line)
        return -log - batch_loss
