"""kNN-Per (Marfoq, Neglia, Kameni & Vidal, ICML 2022, arXiv 2111.09360): nearest neighbours at test time.

Train:  FedAvg, with the other Parts of the method
Test:   a client's own score is that of  p(c) = share q_c + (1 - share) softmax(z)_c
        q_c = sum over its k training samples with features nearest to h of e^(-d_i / scale) 1[y_i =
        c],
        divided by the sum over classes
        d_i = |h - h_i|;   with kernel=gaussian, as in its code, |h - h_i|^2 / D for D features
        features: the head's input in the global model; nothing of it leaves the client
Differs from the paper: `share` and `scale` are equal for all clients; the paper chooses each client's share
on held-out data of the client. The search for neighbours is exact. FL-bench mixes q with logits, not with
probabilities.
Defaults: k is 7 or 10 in the authors' scripts, and scale 1; share is that of FL-bench.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le

from unskew.core import Client, Part, Tensor, Weights
from unskew.formats.setting_ranges import Fraction, Positive

_LITTLE = 1e-30
"""The least probability, so that logits are finite."""


@dataclass(frozen=True)
class KNNPer(Part):
    """Mixes the global model's predictions with the labels of a client's most similar training samples."""

    k: Annotated[int, Ge(1), Le(100_000), "how many of a client's training samples are asked"] = 10
    share: Annotated[Fraction, "share of the neighbours in a client's own predictions; 0: none"] = 0.5
    scale: Annotated[Positive, "distance of features at which a neighbour counts 1/e"] = 1.0
    kernel: Annotated[
        Literal["exponential", "gaussian"],
        "how a neighbour's weight falls with distance: as in the paper, or its code",
    ] = "exponential"
    name = "knn_per"
    family = "personalised"
    against = ("labels",)
    use_when = (
        "Clients want personal predictions without further training; their training samples are available"
        " at prediction."
    )
    tasks = ("classification",)
    needs = "probabilities of classes"
    personal = True
    neutral = {"share": 0.5}

    def personalise(self, w: Weights, c: Client) -> Weights:
        memory = [(c.features(w, b.x), b.y) for b in c.batches()]
        return w | {
            "knn_per.h": torch.cat([h for h, _ in memory]),
            "knn_per.y": torch.cat([y for _, y in memory]),
        }

    def scores(self, z: Tensor, h: Tensor, c: Client) -> Tensor:
        if "knn_per.h" not in c.start:  # not this client's own score
            return z
        h_ND, y_NC = c.start["knn_per.h"], c.start["knn_per.y"]
        near = torch.cdist(h, h_ND).topk(min(self.k, len(h_ND)), largest=False)
        d_Bk = near.values if self.kernel == "exponential" else near.values.square() / h_ND.shape[1]
        q_BC = torch.einsum("bk,bkc->bc", (-d_Bk / self.scale).softmax(1), y_NC[near.indices])
        return (self.share * q_BC + (1 - self.share) * z.softmax(1)).clamp(min=_LITTLE).log()
