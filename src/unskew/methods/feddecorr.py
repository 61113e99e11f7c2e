"""FedDecorr (Shi et al., ICLR 2023, arXiv 2210.00226): penalises correlated features.

Client: loss + beta L      H: the batch's features, each of the D columns standardised; n samples
        code form (default):  M = H^T H,   L = mean over pairs i != j of M_ij^2, divided by n
        paper form:           L = |H^T H / n|_F^2 / D^2, the diagonal included
Differs from the paper: the code form is the default, because beta = 0.1 was tuned for it; it is (n - 1)^2 / n
times a mean squared correlation.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from unskew.core import Batch, Client, Fed, Out, Part, Tensor, Weights
from unskew.formats.setting_ranges import NonNegative


@dataclass(frozen=True)
class FedDecorr(Part):
    """Penalises correlation between the features of a batch."""

    beta: Annotated[NonNegative, "weight of the penalty; 0 is FedAvg"] = 0.1
    form: Annotated[Literal["code", "paper"], "which of the two penalties above"] = "code"
    name = "feddecorr"
    equal_samples = True
    family = "representation"
    against = ("labels",)
    use_when = "There are few clients, and features collapse into few directions."
    tasks = ("classification", "regression", "multilabel")
    needs = "one row of features a sample"

    def refuse(self, fed: Fed) -> str | None:
        return None if fed.features > 1 else "the head receives a single feature"

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor:
        return self.beta * correlation_penalty(out.features, b.weight, self.form)


def correlation_penalty(h_BD: Tensor, weight_B: Tensor, form: str) -> Tensor:
    """The penalty L, a scalar, over the samples of weight 1; 0 with fewer than two of them."""
    n, D = weight_B.sum(), h_BD.shape[1]
    centred = (h_BD - (h_BD * weight_B[:, None]).sum(0) / n.clamp(min=1)) * weight_B[:, None]
    unbiased = n - 1 if form == "code" else n
    var_D = centred.pow(2).sum(0) / unbiased.clamp(min=1)
    H = centred * (var_D + 1e-8).rsqrt()
    # |H^T H| = |H H^T|: of samples or of features, whichever are fewer; D of thousands would make D^2 the
    # whole cost
    squares = (H @ H.T if len(H) < D else H.T @ H).pow(2).sum()
    if form == "paper":
        penalty = squares / n.clamp(min=1).pow(2) / D**2
    else:
        diagonal = H.pow(2).sum(0).pow(2).sum()
        penalty = (squares - diagonal) / (D * (D - 1)) / n.clamp(min=1)
    return torch.where(n > 1, penalty, 0.0)
