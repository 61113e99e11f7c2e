"""FedIIR (Guo et al., ICML 2023): aligns the head's gradients, so that features serve all clients alike.

Up:     before round 1 and after every merge, the sum of the head's gradients over the client's
        samples at w_t
Server: m <- ema m + (1 - ema) sum_k / sum_k n_k    m begins at 0
Client: CE(z, y) + gamma |d - m|^2
        d = mean_i (p_i - y_i) (h_i, 1), the batch's gradient at the head, which also trains the
        features
        p: softmax outputs;   h: the input of the head
Differs from the paper: gradients are measured in evaluation mode by the clients of the round that ended; the
paper measures them during training, by those of the round that begins, and sums over batches instead of
samples. Clients are weighted by size; its code weighs them equally. FL-bench's code never stores m, so that
its m is (1 - ema) times the last mean.
Defaults: those of the official program for PACS and for sets that it does not name; for others gamma is
0.0005 to 0.01.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import nn

from unskew.core import Batch, Client, Fed, Out, Part, Share, Tensor, Tree, Trip, Ups, Weights
from unskew.formats.setting_ranges import BelowOne, NonNegative


@dataclass(frozen=True)
class FedIIR(Part):
    """Pulls the head's gradient in every step towards its mean over clients."""

    gamma: Annotated[NonNegative, "weight of the pull; 0 is FedAvg"] = 0.001
    ema: Annotated[BelowOne, "share of the mean gradient that is kept from round to round"] = 0.95
    name = "fediir"
    equal_samples = True
    family = "representation"
    against = ("features",)
    use_when = "Sites' inputs look different and the model must serve sites it has never seen."
    tasks = ("classification",)
    needs = "sums of features by class"

    def refuse(self, fed: Fed) -> str | None:
        head = fed.net.module.get_submodule(fed.net.head)
        if isinstance(head, nn.Linear):
            return None
        return "it knows the gradient of a head that is one nn.Linear, and this is none"

    @property
    def trips(self) -> tuple[Trip, ...]:
        return (Trip(lambda t, T: t < T, self.measure, self.collect, self.gradients, reads=()),)

    def gradients(self, fed: Fed) -> dict[str, Share]:
        what = "sum of the head's gradients over samples"
        return {
            "sum": Share((fed.classes, fed.features + 1), what=what, kind="weights", samples="client"),
            "n": Share(
                (), low=0, high=float(fed.sizes.max()), what="samples", kind="statistics", samples="client"
            ),
        }

    def measure(self, w: Weights, c: Client) -> Tree:
        def sums(b: Batch) -> dict[str, Tensor]:
            h_BD = c.features(w, b.x)
            return {"sum": slope(c.head(w, h_BD), h_BD, b.y, b.weight), "n": b.weight.sum()}

        return c.total(sums)

    def collect(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        if not len(ups):
            return w, s
        mean = ups["sum"].sum(0) / ups["n"].sum().clamp(min=1)
        return w, {"m": self.ema * s["m"] + (1 - self.ema) * mean}

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        return {"m": torch.zeros(fed.classes, fed.features + 1)}

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor:
        d = slope(out.raw, out.features, b.y, b.weight) / b.weight.sum().clamp(min=1)
        return self.gamma * (d - c.down["m"]).pow(2).sum()


def slope(z_BC: Tensor, h_BD: Tensor, y_BC: Tensor, weight_B: Tensor) -> Tensor:
    """The gradient of the summed cross-entropy with respect to a linear head's weight and bias, [C, D
    + 1]."""
    counts_B1 = weight_B[:, None] > 0
    error_BC = torch.where(counts_B1, z_BC.softmax(-1) - y_BC, 0.0)
    h_BE = torch.cat([h_BD, torch.ones_like(h_BD[:, :1])], 1)
    return error_BC.T @ torch.where(counts_B1, h_BE, 0.0)
