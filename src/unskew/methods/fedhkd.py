"""FedHKD (Chen, Wang & Vikalo, ICLR 2023, arXiv 2301.08968): clients share class means and soft answers.

Client: CE + lam mean_c |softmax(head(H_c) / T) - Q_c| + gamma mean_i |h_i - H_{y_i}|
        over known classes;   H, Q: constants
Up:     by class, of the trained model in evaluation mode: the sums of features h and of softmax(z /
        T), and the number of samples; nothing of a class with less than `threshold` of the client's
        samples
Server: H_c = sum_k sum of h / sum_k n,   Q_c in the same way;   w: the mean
        a class that no client sent keeps its last values
Differs from the paper: it adds Gaussian noise to each client's means of features, with a guarantee that
assumes a bound on features that is not enforced; ours adds none, and `+dp` protects the sums. FedHKD*, which
sends no weights, is not included. The mean over classes is over the known ones, the paper's over all. The
official code takes squared gaps and a divergence instead of the norms, lets each client overwrite H and Q in
its turn, has no threshold, and clips gradients at norm 1.1. If no class makes up `threshold` of any client's
samples, as with ten classes spread evenly, nothing is sent and the method is FedAvg: set a lower threshold in
this case.
Defaults: lam, gamma and T are those of the official program.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch.linalg import vector_norm

from unskew.core import Batch, Client, Fed, Out, Part, Share, Tensor, Tree, Ups, Weights
from unskew.formats.setting_ranges import BelowOne, NonNegative, Rate
from unskew.methods.shared.declarations import class_counts, class_features


@dataclass(frozen=True)
class FedHKD(Part):
    """Teaches clients the mean features and the mean soft answers of each class."""

    lam: Annotated[
        NonNegative, "weight of the gap between the head's soft answers and their mean over clients"
    ] = 0.05
    gamma: Annotated[NonNegative, "weight of the distance of features to their class's mean"] = 0.05
    T: Annotated[Rate, "temperature that softens answers"] = 0.5
    threshold: Annotated[BelowOne, "least share of a client's samples that a class must have to be sent"] = (
        0.25
    )
    name = "fedhkd"
    equal_samples = True
    family = "distillation"
    against = ("labels",)
    use_when = (
        "Labels differ by client, there are no public data for distillation, and common and local models"
        " are both needed."
    )
    untuned = {"threshold": "it decides which classes leave a client"}
    neutral = {"lam": 0.0, "gamma": 0.0}
    tasks = ("classification",)
    needs = "means by class"

    def shares(self, fed: Fed) -> dict[str, Share]:
        C, most = fed.classes, float(fed.sizes.max())
        return {
            "h": class_features(fed),
            "q": Share(
                (C, C),
                low=0,
                high=most,
                what="sum of soft answers per class",
                kind="statistics",
                samples="class",
            ),
            "n": class_counts(fed),
        }

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        C = fed.classes
        return {"H": torch.zeros(C, fed.features), "Q": torch.zeros(C, C), "known": torch.zeros(C)}

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor:
        H_CD, known_C = c.down["H"], c.down["known"]
        gap_C = vector_norm(self.soft(c.head(w, H_CD)) - c.down["Q"], dim=1)
        away_B = vector_norm(out.features * (b.y @ known_C)[:, None] - b.y @ H_CD, dim=1)
        return self.lam * (gap_C * known_C).sum() / known_C.sum().clamp(min=1) + self.gamma * b.mean(away_B)

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        def sums(b: Batch) -> dict[str, Tensor]:
            y_CB, h_BD = (b.y * b.weight[:, None]).T, c.features(w, b.x)
            return {"h": y_CB @ h_BD, "q": y_CB @ self.soft(c.run(w, b.x)), "n": y_CB.sum(1)}

        total = c.total(sums)
        enough_C = (total["n"] >= self.threshold * c.n).to(total["h"].dtype)
        return {name: torch.einsum("c,c...->c...", enough_C, t) for name, t in total.items()}, {}

    def server(self, s: Tree, ups: Ups, fed: Fed) -> Tree:
        n_C1 = ups["n"].sum(0)[:, None]
        H, Q = (
            torch.where(n_C1 > 0, ups[up].sum(0) / n_C1.clamp(min=1), s[down]) for up, down in ("hH", "qQ")
        )
        return {"H": H, "Q": Q, "known": torch.where(n_C1[:, 0] > 0, 1.0, s["known"])}

    def soft(self, z_BC: Tensor) -> Tensor:
        """Probabilities at temperature T, [B, C]."""
        return (z_BC / self.T).softmax(-1)
