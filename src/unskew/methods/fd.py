"""FD (Jeong et al. 2018, arXiv 1811.11479): federated distillation from class means of outputs.

Client k: CE(z, y) + lam CE(z, q_y)
          q_c: the mean of p_jc over the other clients j that have class c, a constant
          without such a client there is no such term
Up:       p_kc, the trained model's mean softmax output over the client's samples of class c
The clients that answered the last round count; a client leaves out its own p of that round. Models stay with
the clients. `feddistill` (Seo et al. 2020, in FedGen's comparison FedDistill+) also merges weights.
Differs from the paper: its p are means over the steps of training; ours are those of the trained model in
evaluation mode. It divides by the number of all other clients, ours by that of the clients that have the
class. FedDistill+ in FedGen's code averages logits over all clients, including the client itself and clients
without the class, and takes the softmax of that mean for q. PFLlib's FD distils the logits themselves, for
which cross-entropy is no bound; ours are probabilities, as in the paper.
Defaults: lam is that of FedGen's comparison, and of PFLlib.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from unskew.core import Batch, Client, Fed, Out, Part, Share, Tensor, Tree, Ups, Weights
from unskew.formats.setting_ranges import NonNegative
from unskew.methods.shared.declarations import class_marks


@dataclass(frozen=True)
class FD(Part):
    """Distils from the mean output that other clients give to samples of the same class."""

    lam: Annotated[NonNegative, "weight of the distillation; 0 teaches nothing"] = 1.0
    aggregate_weights: Annotated[
        bool, "merge the weights too; False: only outputs are exchanged, as in the paper"
    ] = False
    name = "fd"
    equal_samples = True
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {"feddistill": {"aggregate_weights": True}}
    family = "distillation"
    use_when = (
        "Models must not leave the clients, or links carry only a few numbers: a round sends C x C of them."
    )
    tasks = ("classification",)
    needs = "mean outputs by class"

    @property
    def divides(self) -> bool:  # type: ignore[override]
        return not self.aggregate_weights

    def keeps(self, name: str, fed: Fed) -> bool:
        return not self.aggregate_weights

    def shares(self, fed: Fed) -> dict[str, Share]:
        C = fed.classes
        return {
            "p": Share(
                (C, C), low=0, high=1, what="mean output per class", kind="statistics", samples="class"
            ),
            "has": class_marks(fed, reads="sum"),
        }

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        C = fed.classes
        return {"p": torch.zeros(C, C), "has": torch.zeros(C), "t": torch.zeros(())}

    def client_init(self, w: Weights, fed: Fed) -> Tree:
        return self.server_init(w, fed) | {"t": -torch.ones(())}

    def begin(self, w: Weights, c: Client) -> Tree:
        own = (c.mine["t"] == c.down["t"]).to(c.down["p"].dtype)
        others_C = c.down["has"] - own * c.mine["has"]
        q_CC = (c.down["p"] - own * c.mine["p"]) / others_C.clamp(min=1)[:, None]
        return {"q": torch.where(others_C[:, None] > 0.5, q_CC, 0.0)}

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor:
        return self.lam * b.mean(-(b.y @ c.round["q"] * out.raw.log_softmax(-1)).sum(-1))

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        def sums(b: Batch) -> dict[str, Tensor]:
            y_BC = b.y * b.weight[:, None]
            return {"p": y_BC.T @ c.run(w, b.x).softmax(-1), "n": y_BC.sum(0)}

        total = c.total(sums)
        p_CC, has_C = total["p"] / total["n"].clamp(min=1)[:, None], (total["n"] > 0).to(total["n"].dtype)
        shared = {"p": p_CC.clamp(0, 1), "has": has_C}
        return shared, shared | {"t": torch.full_like(c.mine["t"], float(c.t))}

    def server(self, s: Tree, ups: Ups, fed: Fed) -> Tree:
        return {"p": ups["p"].sum(0), "has": ups["has"].sum(0), "t": torch.full_like(s["t"], float(ups.t))}
