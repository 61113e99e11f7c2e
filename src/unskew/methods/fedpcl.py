"""FedPCL (Tan et al., NeurIPS 2022, arXiv 2209.10083): clients exchange class means of features, no weights.

Client: h: features of length 1;   from its second round on it descends, instead of the labels'
        loss,
        L(C) + mean_j L(C_j),    L(C) = -mean_i log( e^(h_i C_{y_i} / tau) / sum_c e^(h_i C_c / tau)
        )
        then sends C_k, the mean h of each class that it has, under its trained model
Server: C_c = mean of C_kc over the clients that have sent one
        C_j: each client's own means, with C_c for classes it lacks
Test:   clients are scored by their own model and C_k: the class with the largest product of mean
        and h
Differs from the paper: there backbones are pretrained and frozen, and only a projection learns; here
everything before the head learns, and the head does not change. Classes that no client has sent add nothing.
Absent clients count with the means they sent last, as in public code, which clips gradients at norm 10. The
authors' code adds up the terms of all clients, without that of the mean, and takes each image in two
augmented views.
Defaults: tau is that of the official program.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F

from unskew.core import Batch, Client, Fed, Out, Part, Share, Tensor, Tree, Ups, Weights
from unskew.formats.setting_ranges import Rate
from unskew.methods.shared.declarations import class_marks


@dataclass(frozen=True)
class FedPCL(Part):
    """Keeps models at the clients; each learns features near the means of their class at every client."""

    tau: Annotated[Rate, "temperature that divides the products of features and means"] = 0.07
    name = "fedpcl"
    own_logits = True
    family = "representation"
    against = ("features",)
    use_when = (
        "Class means of features may leave clients, weights must not, or models differ: start from"
        " pretrained models."
    )
    tasks = ("classification",)
    plain_loss = True
    needs = "means of features by class"
    divides = True
    keeps_at_server = ("sent", "has")

    def refuse(self, fed: Fed) -> str | None:
        if any(not fed.net.of_head(n) for n in fed.net.trainable):
            return None
        return "nothing but the head is trained"

    def keeps(self, name: str, fed: Fed) -> bool:
        return True

    def freezes(self, name: str, fed: Fed) -> bool:
        return fed.net.of_head(name)

    def shares(self, fed: Fed) -> dict[str, Share]:
        C, D, kind = fed.classes, fed.features, fed.kind_at("features", "sums")
        what = "mean of features of length 1 per class"
        return {
            "C": Share((C, D), low=-1, high=1, reads="each", what=what, kind=kind, samples="class"),
            "has": class_marks(fed),
        }

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        K, C, D = fed.clients, fed.classes, fed.features
        return _downlink(torch.zeros(K, C, D), torch.zeros(K, C))

    def client_init(self, w: Weights, fed: Fed) -> Tree:
        return {"C": torch.zeros(fed.classes, fed.features), "has": torch.zeros(fed.classes)}

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor:
        s, h_BD = c.down, F.normalize(out.features)
        z_JBC = torch.einsum("bd,jcd->jbc", h_BD, s["C"]) / self.tau
        log_p_JBC = z_JBC.masked_fill(s["known"] == 0, -1e9).log_softmax(-1)
        near_B = -torch.einsum("j,bc,jbc->b", s["weight"], b.y * s["known"], log_p_JBC)
        active = c.mine["has"].amax() * s["known"].amax()
        return b.mean(active * near_B - c.fed.task.loss(out.logits, b.y))

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        def sums(b: Batch) -> dict[str, Tensor]:
            y_BC = b.y * b.weight[:, None]
            return {"h": y_BC.T @ F.normalize(c.features(w, b.x)), "n": y_BC.sum(0)}

        total = c.total(sums)
        own = {
            "C": (total["h"] / total["n"].clamp(min=1)[:, None]).clamp(-1, 1),
            "has": (total["n"] > 0).to(total["n"].dtype),
        }
        return own, own

    def server(self, s: Tree, ups: Ups, fed: Fed) -> Tree:
        at = ups.clients.to(s["sent"].device)
        sent_KCD = s["sent"].index_copy(0, at, ups["C"].to(s["sent"]))
        return _downlink(sent_KCD, s["has"].index_copy(0, at, ups["has"].to(s["has"])))

    def scores(self, z: Tensor, h: Tensor, c: Client) -> Tensor:
        if "C" not in c.mine:
            return z
        near_BC = F.normalize(h) @ c.mine["C"].T
        return torch.where(c.mine["has"].amax() > 0, near_BC.masked_fill(c.mine["has"] == 0, -torch.inf), z)


def _downlink(sent_KCD: Tensor, has_KC: Tensor) -> Tree:
    """The server's slice. C: the means over clients, then each client's, completed by those, [1 + K, C, D].
    weight: their weights in the loss, [1 + K]."""
    n_C, there_K = has_KC.sum(0), has_KC.amax(1)
    mean_CD = sent_KCD.sum(0) / n_C.clamp(min=1)[:, None]
    filled_KCD = sent_KCD + (1 - has_KC)[..., None] * mean_CD
    weight_K = there_K / there_K.sum().clamp(min=1)
    return {
        "sent": sent_KCD,
        "has": has_KC,
        "C": torch.cat([mean_CD[None], filled_KCD]),
        "weight": torch.cat([torch.ones_like(weight_K[:1]), weight_K]),
        "known": (n_C > 0).to(has_KC.dtype),
    }
