"""FedPAC (Xu, Tong & Huang, ICLR 2023, arXiv 2306.11867): aligned features and personal mixtures of heads.

Client: with the received body f, before training:
        mu_c: its mean feature of class c;   p_c: its share of samples;   h_c = p_c mu_c
        V = (sum_c p_c mean_{y_i = c} |f_i|^2 - sum_c |h_c|^2) / n
        the first round(head S) of its S local steps train the head, the others the body, with
        CE + lam mean_i |f_i - z_{y_i}|^2 / D
        z_c: the received centroid; mu_c if there is none;   no such term in round 1
        each gets at least one step if S > 1; with S = 1 both are trained in that step
Up:     w, h, V, and by class the sum of the trained model's features and their number
Server: z_c = sum of features / number;   bodies are averaged
        sends client k the head  sum_j a_kj head_j,  for a_kj >= 0 of sum 1 that minimise
        sum_j a_kj^2 V_j + sum_c |h_kc - sum_j a_kj h_jc|^2
Test:   clients are scored by the models they receive
Differs from the paper: it trains the head for one pass at a separate learning rate and then the body; ours
takes a share of the local steps at one rate. Shares are those of the clients that replied; others keep the
last head they received, at first the common one. Public code drops shares below 0.001.
Defaults: those of the official program, which trains the head for one epoch and then the body for five.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Gt, Lt
from scipy.optimize import nnls

from unskew.core import Batch, Client, Fed, Out, Part, Share, Tensor, Tree, Ups, Weights
from unskew.formats.setting_ranges import NonNegative
from unskew.methods.shared.declarations import class_counts, class_features
from unskew.methods.shared.weights import head_first


@dataclass(frozen=True)
class FedPAC(Part):
    """Aligns features with class means over all clients, and sends each client its best combination of
    heads."""

    lam: Annotated[NonNegative, "weight of the pull of features to their class's centroid"] = 1.0
    head: Annotated[
        float, Gt(0), Lt(1), "share of a round's local steps that train the head, before the body's"
    ] = 0.167
    name = "fedpac"
    equal_samples = True
    family = "personalised"
    against = ("labels", "scarcity")
    use_when = (
        "Labels differ by client, and clients with few samples should use the heads of similar clients."
    )
    tasks = ("classification",)
    needs = "means of features by class"
    weights_read = "each"
    divides = True
    keeps_at_server = ("head",)
    hands_on = "mixtures of the heads of single clients, those with similar samples foremost"

    def refuse(self, fed: Fed) -> str | None:
        return fed.net.untrained_head()

    def shares(self, fed: Fed) -> dict[str, Share]:
        return {
            "h": class_features(fed, "mean feature times share, per class", "each"),
            "V": Share(
                (), low=0, reads="each", what="variance of features", kind="statistics", samples="client"
            ),
            "sums": class_features(fed),
            "counts": class_counts(fed),
        }

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        heads = {n: torch.stack([t] * fed.clients) for n, t in w.items() if fed.net.of_head(n)}
        return {"z": torch.zeros(fed.classes, fed.features), "known": torch.zeros(fed.classes), "head": heads}

    def begin(self, w: Weights, c: Client) -> Tree:
        def sums(b: Batch) -> dict[str, Tensor]:
            y_BC, f_BD = b.y * b.weight[:, None], c.features(w, b.x)
            return {"f": y_BC.T @ f_BD, "n": y_BC.sum(0), "squares": (f_BD.pow(2).sum(1) * b.weight).sum()}

        total = c.total(sums)
        n = total["n"].sum()
        h_CD = total["f"] / n
        V = (total["squares"] / n - h_CD.pow(2).sum()).clamp(min=0) / n
        return {"h": h_CD, "V": V, "mu": total["f"] / total["n"].clamp(min=1)[:, None]}

    def holds(self, c: Client) -> dict[str, Tensor]:
        return head_first(self.head, c)

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor:
        known_C = c.down["known"][:, None]
        target_CD = known_C * c.down["z"] + (1 - known_C) * c.round["mu"]
        far_B = (out.features - b.y @ target_CD).pow(2).mean(1)
        return self.lam * c.down["known"].max() * b.mean(far_B)

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        sums_CD, n_C = c.class_sums(w)
        return {"h": c.round["h"], "V": c.round["V"], "sums": sums_CD, "counts": n_C}, {}

    def server(self, s: Tree, ups: Ups, fed: Fed) -> Tree:
        n_C, replied, heads = ups["counts"].sum(0), ups.clients, dict(s["head"])
        a_KK = head_shares(ups["h"].double(), ups["V"].double()).to(s["z"])
        for n in heads:
            mixed = torch.einsum("kj,j...->k...", a_KK, ups.stack(n).to(a_KK))
            heads[n] = heads[n].index_copy(0, replied.to(a_KK.device), mixed)
        z_CD = ups["sums"].sum(0) / n_C.clamp(min=1)[:, None]
        return {"z": z_CD, "known": (n_C > 0).to(n_C.dtype), "head": heads}

    def dispatch(self, w: Weights, s: Tree, k: int, fed: Fed) -> tuple[Weights, Tree]:
        return w | {n: t[k] for n, t in s["head"].items()}, {"z": s["z"], "known": s["known"]}


def head_shares(h_KCD: Tensor, V_K: Tensor) -> Tensor:
    """The shares a, [K, K]; row k holds the share of every client's head in that for client k."""
    h_KN = h_KCD.flatten(1)
    rows = []
    for h_N in h_KN:
        away_KN = h_N - h_KN
        rows.append(_least(away_KN @ away_KN.T + torch.diag(V_K)))
    return torch.stack(rows)


def _least(P_KK: Tensor) -> Tensor:
    """The shares a, [K], with sum 1 that minimise a P a; P is positive semidefinite.

    With P = R'R, the minimum of |R b|^2 + (sum b - 1)^2 over b >= 0 lies in the direction of a.
    """
    values_K, vectors_KK = torch.linalg.eigh(P_KK.cpu())
    R_KK = (vectors_KK * values_K.clamp(min=0).sqrt()).T
    K = len(P_KK)
    rows = np.concatenate([R_KK.numpy(), np.ones((1, K))])
    b_K, _ = nnls(rows, np.eye(K + 1)[K])
    return torch.as_tensor(b_K / b_K.sum()).to(P_KK)
