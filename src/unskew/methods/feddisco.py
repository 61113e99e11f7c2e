"""FedDisco (Ye et al., ICML 2023, arXiv 2305.19229): clients with skewed labels count less.

Client: sends d_k = sum_c q_kc log(C q_kc);   with measure=l2, ||q_k - 1/C||      q_k: its label
        shares
Server: d_k <- d_k / sum_j d_j   for kl
        p_k <- relu(p_k - a d_k + b),   divided by their sum      p_k: n_k / n
        w_{t+1} = sum_k p_k w_k
If all weights become 0, p_k does not change.
Differs from the paper: labels are compared only with uniform ones, the paper's default. Divergences are
divided by their sum, and defaults are chosen, as in the official code; that code fails if all weights become
0.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch

from unskew.core import Client, Fed, Part, Share, Tree, Ups, Weights
from unskew.formats.setting_ranges import NonNegative
from unskew.merge.mean import weighted_mean


@dataclass(frozen=True)
class FedDisco(Part):
    """Weighs clients by their size and by how evenly their labels are spread."""

    a: Annotated[NonNegative, "how much a client loses for the skew of its labels"] = 0.5
    b: Annotated[NonNegative, "added to every client's weight; large values weigh clients equally"] = 0.1
    measure: Annotated[Literal["kl", "l2"], "distance of a client's label shares from the uniform ones"] = (
        "kl"
    )
    name = "feddisco"
    tasks = ("classification", "segmentation")
    needs = "class counts"
    family = "merge"
    against = ("labels",)
    use_when = "Label skew differs between clients: some hold all classes, some a few."
    neutral = {"a": 0.0, "b": 0.0}
    merges = True
    weights_read = "each"

    def shares(self, fed: Fed) -> dict[str, Share]:
        what = "distance of the label shares from the uniform ones"
        return {"d": Share((), low=0, reads="each", what=what, kind="statistics", samples="client")}

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        q_C = c.counts / c.counts.sum()
        if self.measure == "kl":
            return {"d": torch.special.xlogy(q_C, q_C * c.fed.classes).sum().clamp(min=0)}, {}
        return {"d": (q_C - 1 / c.fed.classes).square().sum().sqrt()}, {}

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        p_K, d_K = torch.tensor(ups.shares_of_weight()), ups["d"].double().cpu()
        if self.measure == "kl" and d_K.sum():
            d_K = d_K / d_K.sum()
        left_K = (p_K - self.a * d_K + self.b).relu()
        return weighted_mean(w, replace(ups, sizes=left_K if left_K.sum() else p_K), "size"), s
