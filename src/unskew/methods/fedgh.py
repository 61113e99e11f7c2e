"""FedGH (Yi et al., ACM MM 2023, arXiv 2303.13137): the server trains one head on the clients' class means.

Client: trains its whole model from its own body and the server's head; the body stays with it
Up:     m_kc, the mean feature of class c under the trained body, for the classes that the client
        has
Server: passes of SGD over the pairs (m_kc, c), in minibatches, from its last head:  CE(head(m_kc),
        c)
Differs from the paper: its code clips gradients at norm 50, takes a class's mean over the means of batches,
and scores clients right after their training, with the head they have trained; ours are scored with the
server's. A class that no client of the round has is masked out of CE, so that its row of the head does not
change; in the paper it is trained as a wrong class. Heads are sent with the updates but not read. Bodies
begin alike and have one architecture; in the paper each client may have its own.
Defaults: those of the official program; PFLlib takes 10 pairs in a step, at a rate of 1.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le

from unskew.core import Client, Fed, Part, Share, Tree, Ups, Weights, key
from unskew.formats.setting_ranges import Count, Rate
from unskew.methods.fedavg_ft import HeadTraining, train_head
from unskew.methods.shared.declarations import class_features, class_marks


@dataclass(frozen=True)
class FedGH(Part):
    """Keeps bodies at the clients; the server trains their common head on class means."""

    lr: Annotated[Rate, "learning rate of the head's SGD at the server"] = 0.01
    epochs: Annotated[int, Ge(1), Le(10_000), "passes over the clients' class means, a round"] = 1
    batch_size: Annotated[Count, "class means in a step"] = 1
    name = "fedgh"
    equal_samples = True
    family = "personalised"
    against = ("labels",)
    use_when = "Clients need personal bodies, and a common head should still tell the classes apart."
    tasks = ("classification",)
    needs = "means of features by class"
    merges = True
    totals = {"finish": 1}
    divides = True

    def refuse(self, fed: Fed) -> str | None:
        return fed.net.untrained_head(alone=True)

    def keeps(self, name: str, fed: Fed) -> bool:
        return not fed.net.of_head(name)

    def shares(self, fed: Fed) -> dict[str, Share]:
        return {"mean": class_features(fed, "mean feature per class", "each"), "has": class_marks(fed)}

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        sums_CD, n_C = c.class_sums(w)
        return {"mean": sums_CD / n_C.clamp(min=1)[:, None], "has": (n_C > 0).to(n_C.dtype)}, {}

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        has_KC = ups["has"] > 0
        h_ND, y_N = ups["mean"][has_KC], torch.nonzero(has_KC)[:, 1]
        training = HeadTraining(self.epochs, self.batch_size, self.lr, 0.0)
        y_NC = fed.task.targets(y_N, fed.classes).to(h_ND.dtype)
        return w | train_head(w, h_ND, y_NC, fed, training, key(fed.seed, ups.t, self.name)), s
