"""ReBaFL (Xu et al., arXiv 2303.06314): relaxed balanced softmax (R-BSM) and feature augmentation (F-Aug).

R-BSM:  L0 = CE(z + log q, y),   q = (1 - eps) p_k + eps / C      p_k: the client's label shares
        (Eq. 8-10)
F-Aug:  h'_i = c_{k_i} + h_i - c_{y_i},   k_i runs through the classes with a prototype (Eq. 15, its
        scaling coefficient at 1, the value of paper and code)
        L1 = CE(W h' + b + log r, k),   r: label shares of the augmented batch, smoothed like q
        L = L0 + mu L1 (Eq. 16);   prototypes and h are constants, so L1 trains only the head
Up:     by class, the sum of features of the trained model and their number (Eq. 21)
Server: c_c = sum_k sums_kc / sum_k n_kc over the clients that replied (Eq. 23)
eps = 1 is plain cross-entropy, eps = 0 the balanced softmax; mu = 0 leaves F-Aug out, and nothing is shared.
Differs from the paper: Eq. 10 is printed for an added coefficient (`form="additive"`); its code smooths
labels, our default. That h is a constant in L1 is the code's choice, which the text does not mention; so is
that a client with one class trains without F-Aug, as all clients do before prototypes have been received, in
round 1, in which Eq. 18 would make all of them from a client's own samples. Sums leave a client instead of
means, so that the server needs only their totals. All clients' sums count, as in Eq. 23; the public code
leaves out those of clients with one class. A client completes missing prototypes with those of the received
body (Eq. 18), which the public code computes and never uses.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F

from unskew.core import Batch, Client, Fed, Out, Part, Share, Tensor, Tree, Ups, Weights
from unskew.formats.arguments import With
from unskew.formats.setting_ranges import Fraction, NonNegative
from unskew.methods.bsm import MIXTURES
from unskew.methods.shared.declarations import class_counts, class_features


@dataclass(frozen=True)
class ReBaFL(Part):
    """Corrects logits by the client's smoothed label shares and augments features of classes it lacks."""

    eps: Annotated[
        Fraction,
        "smoothing of the label shares; 1 is plain cross-entropy, 0 the balanced softmax"
        ' (`form="smoothing"`)',
    ] = 0.01
    mu: Annotated[NonNegative, "weight of the augmented loss; 0: no augmentation, and nothing is shared"] = (
        0.5
    )
    form: Annotated[
        Literal["smoothing", "additive"], "mix the label shares with the uniform ones, or add `eps` to each"
    ] = "smoothing"
    aug_grad: Annotated[bool, With("mu"), "let the augmented loss train the body too"] = False
    keep_stale: Annotated[
        bool, With("mu"), "keep the old prototype of a class that no client reported in a round"
    ] = False
    name = "rebafl"
    family = "classifier"
    against = ("labels",)
    use_when = "Each client holds few of the classes, and many clients are absent."
    presets = {"rbsm": {"mu": 0.0}, "faug": {"eps": 1.0}}
    tasks = ("classification",)
    plain_loss = True
    needs = "class counts and prototypes of classes"

    @property
    def clashes(self) -> Mapping[str, str]:  # type: ignore[override]
        """Parts that mix labels, unless `eps` makes the prior uniform for all clients."""
        if self.eps == 1 and self.form == "smoothing":
            return {}
        others = dict.fromkeys(
            MIXTURES, "it corrects by the client's own labels, and the other brings labels into its batches"
        )
        if self.eps:
            return others
        return others | {"fedrs": "with eps=0 it masks the classes a client lacks, which fedrs would scale"}

    def refuse(self, fed: Fed) -> str | None:
        return None if fed.classes > 1 else "balanced softmax needs at least two classes"

    def shares(self, fed: Fed) -> dict[str, Share]:
        if not self.mu:
            return {}
        return {
            "sums": class_features(fed),
            "counts": class_counts(fed),
        }

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        if not self.mu:
            return {}
        return {"prototypes": torch.zeros(fed.classes, fed.features), "known": torch.zeros(fed.classes)}

    def begin(self, w: Weights, c: Client) -> Tree:
        """The received prototypes, completed by the client's own classes under the received body (Eq. 18)."""
        if not self.mu:
            return {}
        mine_CD, n_C = c.class_sums(w)
        received_C = c.down["known"]
        own_C = (n_C > 0).to(mine_CD.dtype) * (1 - received_C)
        table_CD = (
            received_C[:, None] * c.down["prototypes"] + own_C[:, None] * mine_CD / n_C.clamp(min=1)[:, None]
        )
        use = (received_C.sum() > 0).to(mine_CD.dtype) * ((c.counts > 0).sum() > 1)
        return {"prototypes": table_CD, "known": received_C + own_C, "use": use}

    def logits(self, z: Tensor, b: Batch, c: Client) -> Tensor:
        return z + self._smooth(c.counts / c.n).log()

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor | float:
        if not self.mu:
            return 0.0
        h_BD, label_B = self.augment(out.features, b.y, c.round["prototypes"], c.round["known"])
        k_BC = F.one_hot(label_B, c.fed.classes).to(h_BD.dtype)
        share_C = (k_BC * b.weight[:, None]).sum(0) / b.weight.sum().clamp(min=1)
        z_BC = c.head(w, h_BD if self.aug_grad else h_BD.detach()) + self._smooth(share_C).log()
        return self.mu * c.round["use"] * b.mean(c.fed.task.loss(z_BC, k_BC))

    def augment(self, h_BD: Tensor, y_BC: Tensor, table_CD: Tensor, known_C: Tensor) -> tuple[Tensor, Tensor]:
        """Moves the batch from its classes to the known classes in turn (Eq. 15); (h', its labels)."""
        turn_B = torch.arange(len(h_BD), device=h_BD.device) % known_C.sum().clamp(min=1)
        label_B = (known_C.cumsum(0)[None, :] <= turn_B[:, None]).sum(1).clamp(max=len(known_C) - 1)
        return table_CD[label_B] + h_BD - y_BC @ table_CD, label_B

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        if not self.mu:
            return {}, {}
        sums_CD, n_C = c.class_sums(w)
        return {"sums": sums_CD, "counts": n_C}, {}

    def server(self, s: Tree, ups: Ups, fed: Fed) -> Tree:
        if not self.mu:
            return s
        n_C = ups["counts"].sum(0)
        known_C = (n_C > 0).to(n_C.dtype)
        table_CD = ups["sums"].sum(0) / n_C.clamp(min=1)[:, None]
        if self.keep_stale:
            stale_C = s["known"] * (1 - known_C)
            table_CD, known_C = table_CD + stale_C[:, None] * s["prototypes"], known_C + stale_C
        return {"prototypes": table_CD, "known": known_C}

    def _smooth(self, p_C: Tensor) -> Tensor:
        if self.form == "additive":
            return (p_C + self.eps) / (1 + len(p_C) * self.eps)
        return (1 - self.eps) * p_C + self.eps / len(p_C)
