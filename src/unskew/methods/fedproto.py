"""FedProto (Tan et al., AAAI 2022, arXiv 2105.00243): pulls features to their class's mean over all clients.

Client: loss + lam mean_i |h_i - c_{y_i}|^2 / D
        c_y: the received prototype, a constant;   0 for a class without one
Up:     by class, the sum of features of the trained model and their number
Server: c_c = sum_k sums / sum_k n
Differs from the paper: weights are averaged too and the head predicts, as FedRDN's comparison needs; with
`aggregate_weights=False`, as in the paper, models stay with the clients and the nearest prototype predicts.
The paper pulls the class means of a batch to the prototypes, ours pulls every sample, as its code does. Local
means are taken over the trained model, not during training; clients count by their samples (official code:
equally).
Defaults: lam is that of the official program, and of FedRDN's comparison.
"""

from dataclasses import dataclass
from typing import Annotated

import torch

from unskew.core import Batch, Client, Fed, Out, Part, Share, Tensor, Tree, Ups, Weights
from unskew.formats.setting_ranges import NonNegative
from unskew.methods.shared.declarations import class_counts, class_features


@dataclass(frozen=True)
class FedProto(Part):
    """Pulls features towards their class's mean over all clients."""

    lam: Annotated[NonNegative, "weight of the pull; 0 is FedAvg"] = 1.0
    aggregate_weights: Annotated[
        bool, "merge the weights too; False: only the class means are exchanged, as in the paper"
    ] = True
    name = "fedproto"
    equal_samples = True
    family = "representation"
    against = ("labels",)
    use_when = (
        "Clients' features drift apart; with `aggregate_weights=False` also for clients that keep their"
        " own models."
    )
    tasks = ("classification",)
    needs = "prototypes of classes"
    alone = True
    totals = {"finish": 1}

    def shares(self, fed: Fed) -> dict[str, Share]:
        return {
            "sums": class_features(fed),
            "counts": class_counts(fed),
        }

    def keeps(self, name: str, fed: Fed) -> bool:
        return not self.aggregate_weights

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        return {"prototypes": torch.zeros(fed.classes, fed.features), "known": torch.zeros(fed.classes)}

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor:
        gap_BD = out.features * (b.y @ c.down["known"])[:, None] - b.y @ c.down["prototypes"]
        return self.lam * b.mean(gap_BD.pow(2).mean(1))

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        sums_CD, n_C = c.class_sums(w)
        return {"sums": sums_CD, "counts": n_C}, {}

    def server(self, s: Tree, ups: Ups, fed: Fed) -> Tree:
        n_C = ups["counts"].sum(0)
        return {
            "prototypes": ups["sums"].sum(0) / n_C.clamp(min=1)[:, None],
            "known": (n_C > 0).to(n_C.dtype),
        }

    def scores(self, z: Tensor, h: Tensor, c: Client) -> Tensor:
        if self.aggregate_weights or not c.down["known"].sum():
            return z
        return -torch.cdist(h, c.down["prototypes"]).masked_fill(c.down["known"] == 0, torch.inf)
